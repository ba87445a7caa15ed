"""Chat templates: what Hugging Face templates use, limits, and errors that name the line."""

from __future__ import annotations

import re
import time
from contextlib import suppress

import pytest

from inferd.text.errors import TextError
from inferd.text.template import ChatTemplate, RenderLimits


def render(source: str, limits: RenderLimits | None = None, **variables: object) -> str:
    return ChatTemplate(source, limits or RenderLimits()).render(variables)


def failure(source: str, limits: RenderLimits | None = None, **variables: object) -> str:
    with pytest.raises(TextError) as caught:
        render(source, limits, **variables)
    assert caught.value.field == "messages"
    return str(caught.value)


FEATURES = {
    "tojson keeps text and order": ("{{ {'b': 'é<&\\'', 'a': [1, none]} | tojson }}", '{"b": "é<&\'", "a": [1, null]}'),
    "tojson indent": ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
    "tojson separators": ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
    "blocks are trimmed": ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
    "loop controls": (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}",
        "023",
    ),
    "generation marks": ("{% for i in [1, 2] %}{% generation %}<{{ i }}>{% endgeneration %}{% endfor %}", "<1><2>"),
    "namespace": (
        "{% set n = namespace(x=0) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
        "3",
    ),
    "macro": ("{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f(1) }}", "[1]"),
    "undefined": ("{{ nothing }}{% if nothing is defined %}a{% else %}b{% endif %}", "b"),
    "string methods": ("{{ ' a </t> b'.strip().split('</t>')[-1].lstrip() }}", "b"),
    "repetition": ("{{ 'ab' * 3 }}{{ 2 ** 5 }}{{ 6 * 7 }}", "ababab3242"),
}


@pytest.mark.parametrize(("source", "expected"), FEATURES.values(), ids=FEATURES)
def test_features(source, expected):
    assert render(source) == expected


def test_features_are_those_of_transformers():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    for source, expected in FEATURES.values():
        assert utils._compile_jinja_template(source).render() == expected


def test_the_date():
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_raise_exception_tells_its_reason():
    text = "{% if messages[0].role != 'user' %}\n{{ raise_exception('Roles must alternate') }}{% endif %}"
    assert failure(text, messages=[{"role": "x"}]).endswith("Roles must alternate")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\nb\n{% if %}", "line 3"),
        ("{{ 'x' }\n", "line 1"),
        ("\n\n{{ none + 'x' }}", "line 3: unsupported operand"),
        ("\n{{ messages[0].name.first }}", "line 2: .*has no attribute 'name'"),
        ("\n{% for x in 5 %}{% endfor %}", "line 2"),
        ("{% macro f() %}\n\n{{ 1 / 0 }}{% endmacro %}{{ f() }}", "line 3: division"),
        ("{% include 'x' %}", "line 1"),
        ("{% unknown %}", "line 1: .*unknown"),
    ],
)
def test_errors_name_the_line(source, message):
    text = failure(source, messages=[{"role": "user"}])
    assert re.search(message, text), text


HOSTILE = {
    "attributes": "{{ messages.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "format attributes": "{{ '{0.__class__}'.format(messages) }}",
    "attr filter": "{{ messages | attr('__class__') }}",
    "mutation": "{% set _ = messages.append(1) %}{{ messages }}",
    "mutation of a table": "{% set _ = messages[0].update({'a': 1}) %}",
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "repeat": "{{ 'x' * 10 ** 9 }}",
    "repeat reversed": "{{ 1000000000 * 'xy' }}",
    "repeat list": "{{ [1] * 10 ** 9 }}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_fail_quickly(source):
    messages = [{"role": "user"}]
    start = time.process_time()
    with suppress(TextError):
        assert "class" not in render(source, messages=messages)
    assert messages == [{"role": "user"}]
    assert time.process_time() - start < 2


def test_endless_work_ends():
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.process_time()
    assert "line 1: took more than 0.2 s" in failure(loops, RenderLimits(seconds=0.2))
    assert time.process_time() - start < 2


def test_output_is_bounded():
    source = "{% for i in range(1000) %}0123456789{% endfor %}"
    assert "exceeds 999 characters" in failure(source, RenderLimits(chars=999))
    assert len(render(source, RenderLimits(chars=10_000))) == 10_000


def test_what_a_template_knows():
    assert ChatTemplate("{{ tools }}{{ m.tool_calls }}").knows_tools
    assert ChatTemplate("{{ tools }}{{ m.tool_calls }}").knows_tool_calls
    assert not ChatTemplate("{% for tools in [] %}{% endfor %}").knows_tools
