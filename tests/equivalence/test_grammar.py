"""Structured output: what comes is what was asked for, and nothing else in the engine notices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from inferd.engine.offline import Results
from inferd.link import Grammar, Submit
from inferd_client.protocol import Code
from tests.equivalence.choice import check_choices
from tests.equivalence.levers import Knowing
from tests.equivalence.models import PROMPTS
from tests.equivalence.rig import Rig, build, submit
from tests.grammar.judge import PERSON, SCHEMAS, Oracle, check, choice, lark, regex, schema

EOS = (1, 3)
CONTEXT = 320
WIDE: dict[str, Any] = {"context": CONTEXT, "blocks": 6 * CONTEXT // 4}
GRAMMARS = (
    schema(PERSON),
    regex(r"(ab|cd){2,5}(x|yy)?"),
    choice("yes", "no", "ü💥"),
    lark('start: "<" /[a-c]{2,4}/ ">" start? | NUM\nNUM: /[0-9]{1,3}/'),
)


@pytest.fixture(scope="module")
def oracle(llama: Path) -> Oracle:
    return Oracle(llama, 290)


@pytest.fixture(scope="module")
def rig(llama: Path) -> Rig:
    return build(llama, **WIDE)


def ask(key: str, grammar: Grammar | None, prompt: Sequence[int] = PROMPTS[1], **fields: Any) -> Submit:
    return submit(key, prompt, **({"max_tokens": 200, "temperature": 1.0, "eos_ids": EOS, "grammar": grammar} | fields))


def mixed() -> list[Submit]:
    """Requests with and without grammars, of all kinds, that share prompts and meet in steps."""
    requests = [
        ask(
            f"g{i}",
            GRAMMARS[i % 4],
            PROMPTS[i % 6],
            seed=i,
            n=1 + i % 2,
            frequency_penalty=0.3 * (i % 3),
            max_tokens=100,
        )
        for i in range(8)
    ]
    return requests + [ask(f"f{i}", None, PROMPTS[i], seed=i, max_tokens=30, logprobs=2) for i in range(4)]


def tokens(results: Results) -> dict[tuple[str, int], tuple[list[int], str | None]]:
    return {at: (result.ids, result.finish) for at, result in results.items()}


@pytest.fixture(scope="module")
def alone(rig: Rig) -> dict[tuple[str, int], tuple[list[int], str | None]]:
    """What each of the mixed requests gets when it runs alone."""
    found = {}
    for request in mixed():
        found |= tokens(rig.run([request]))
    return found


def test_each_output_is_what_was_asked_for(alone: dict, oracle: Oracle) -> None:
    for request in mixed():
        for at in range(request.sampling.n):
            ids, finish = alone[request.key, at]
            if request.grammar is not None:
                assert finish == "stop"
                text = oracle.text(ids)
                if request.grammar.kind != "grammar":
                    check(request.grammar, text)


def test_every_token_is_the_choice_among_those_allowed(llama: Path, oracle: Oracle) -> None:
    """Token by token against plain Python, with the mask of a matcher that was made for this place alone."""
    rig = build(llama, **WIDE)
    requests = [
        ask("greedy", GRAMMARS[0], temperature=0.0, max_tokens=60),
        ask("hot", GRAMMARS[0], temperature=1.5, seed=3, presence_penalty=1.0, repetition_penalty=1.3),
        ask("filtered", GRAMMARS[1], temperature=0.8, top_k=3, top_p=0.9, seed=4),
        ask("biased", GRAMMARS[2], temperature=1.0, seed=5, logit_bias={40: 5.0, 50: -3.0}),
        ask("late", regex("[ab]*"), temperature=1.0, seed=6, min_tokens=6, max_tokens=12),
    ]
    with torch.inference_mode():
        results = rig.run(requests)
        _forbid(rig, oracle, requests, results)
    check_choices(rig.tap.rows, requests, results)


def _forbid(rig: Rig, oracle: Oracle, requests: Sequence[Submit], results: Results) -> None:
    """Take from each row of an output what its grammar does not allow."""
    for row in rig.tap.rows:
        request = next(r for r in requests if r.key == row.request)
        assert request.grammar is not None
        output = row.context[row.num_prompt :]
        if list(output) == results[row.request, 0].ids[: len(output)]:
            forbidden = set(range(290)) - oracle.allowed(request.grammar, output)
            row.logits[list(forbidden)] = -torch.inf
    check_choices(rig.tap.rows, requests, results)


LEVERS: dict[str, dict[str, Any]] = {
    "together": {},
    "few blocks": {"blocks": 30},
    "chunks": {"chunk": 3},
    "ngram": {"plugins": {"draft": "ngram"}},
    "ngram and few blocks": {"plugins": {"draft": "ngram"}, "blocks": 30},
    "contiguous": {"plugins": {"kv": "contiguous"}, "prefix_cache": False},
    "static": {"batching": "static"},
}


@pytest.mark.parametrize("options", LEVERS.values(), ids=LEVERS)
def test_no_lever_changes_a_token(llama: Path, alone: dict, options: dict[str, Any]) -> None:
    rig = build(llama, **(WIDE | options))
    rig.tap.keep_rows = False
    assert tokens(rig.run(mixed())) == alone
    assert rig.preemptions > 0 or "blocks" not in options
    assert rig.tap.counts["verify rows"] > 0 or "plugins" not in options or "draft" not in options["plugins"]
    rig.assert_empty()


def test_drafts_are_accepted_where_allowed_and_cut_where_not(llama: Path, alone: dict) -> None:
    """A drafter that knows every answer, and errs: most drafts are accepted, and none changes a token."""
    by_key = {request.key: request for request in mixed()}
    answers = [[*by_key[key].prompt, *ids] for (key, _), (ids, _) in alone.items()]
    rig = build(llama, **WIDE, plugins={"draft": "ngram"}, max_draft=4)
    rig.engine.drafter = Knowing(answers, wrong=0.2)
    results = rig.run(mixed())
    assert tokens(results) == alone
    constrained = [result for (key, _), result in results.items() if key.startswith("g")]
    assert sum(result.accepted for result in constrained) > 50
    assert all(result.accepted < len(result.ids) for result in constrained)
    rig.assert_empty()


def test_a_forbidden_draft_is_not_even_verified(llama: Path) -> None:
    rig = build(llama, **WIDE, plugins={"draft": "ngram"}, max_draft=4)
    grammar = regex("a{12}")
    answer = rig.run([ask("p", grammar)])["p", 0].ids
    rig.engine.drafter = Knowing([[*PROMPTS[1], *answer[:2], *PROMPTS[5]]], wrong=0.0)
    result = rig.run([ask("d", grammar)])["d", 0]
    assert result.ids == answer
    assert result.drafted == result.accepted <= 2


def test_free_rows_beside_constrained_ones_keep_their_bits(llama: Path, rig: Rig, oracle: Oracle) -> None:
    """Ids and log-probabilities of requests without a grammar, with and without company that has one."""
    free = [r for r in mixed() if r.grammar is None]
    plain = build(llama, **WIDE).run(free)
    beside = rig.run([r for pair in zip(free, mixed()[:4], strict=True) for r in pair])
    for request in free:
        at = (request.key, 0)
        assert (beside[at].ids, beside[at].logprobs) == (plain[at].ids, plain[at].logprobs)


def test_logprobs_are_the_models_own(rig: Rig) -> None:
    """Log-softmax of the raw logits: the mask does not show."""
    rig.tap.rows.clear()
    result = rig.run([ask("l", GRAMMARS[0], logprobs=3, temperature=0.0)])["l", 0]
    rows = {len(row.context) - row.num_prompt: row for row in rig.tap.rows if row.request == "l"}
    assert len(result.logprobs) == len(result.ids)
    assert any(entry.rank > 1 for entry in result.logprobs)
    for place, entry in enumerate(result.logprobs):
        wanted = rows[place].logits.log_softmax(-1)
        assert entry.token == result.ids[place]
        assert entry.logprob == pytest.approx(float(wanted[entry.token]), abs=1e-5)
        assert entry.top[0][0] == int(wanted.argmax())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=SCHEMAS)
def test_any_schema_is_followed(rig: Rig, oracle: Oracle, wanted: dict[str, Any]) -> None:
    """A model of random weights at temperature 1 has no mind of its own: what holds is the grammar."""
    rig.tap.keep_rows = False
    results = rig.run([ask(f"s{seed}", schema(wanted), seed=seed, max_tokens=250) for seed in range(3)])
    for result in results.values():
        assert result.error is None, (wanted, result.error)
        if result.finish == "stop":
            check(schema(wanted), oracle.text(result.ids))
        else:
            assert len(result.ids) == 250
            oracle.allowed(schema(wanted), result.ids)


def test_an_end_token_comes_only_where_the_grammar_may_end(rig: Rig, oracle: Oracle) -> None:
    """With all weight on EOS, the shortest output comes, and EOS itself where more could follow."""
    bias = dict.fromkeys(EOS, 100.0)
    kinds = {"a{3}": (3, None), "a{3}b*": (3, EOS[0])}
    for pattern, (length, _) in kinds.items():
        result = rig.run([ask("e", regex(pattern), logit_bias=bias, temperature=0.0)])["e", 0]
        body = [token for token in result.ids if token not in EOS]
        assert oracle.text(body) == "a" * length
        assert result.finish == "stop"
        assert (result.ids[-1] in EOS) == (pattern == "a{3}b*")


@pytest.mark.parametrize("cap", range(1, 7))
def test_a_cap_cuts_off_unless_the_grammar_is_complete(rig: Rig, oracle: Oracle, cap: int) -> None:
    result = rig.run([ask("c", regex("(?:<[a-c]>){2}"), max_tokens=cap)])["c", 0]
    text = oracle.text(result.ids)
    assert len(result.ids) <= cap
    assert result.finish == ("stop" if len(text) == 6 else "length")


def test_completion_wins_over_min_tokens(rig: Rig, oracle: Oracle) -> None:
    result = rig.run([ask("m", choice("ab"), min_tokens=20)])["m", 0]
    assert (oracle.text(result.ids), result.finish) == ("ab", "stop")


def test_what_stops_a_request_stops_it_inside_a_grammar_too(rig: Rig, oracle: Oracle) -> None:
    (stop,) = oracle.vocabulary.encode("b")
    result = rig.run([ask("t", regex("a{5}b{9}"), stop_token_ids=(stop,))])["t", 0]
    assert (oracle.text(result.ids), result.finish) == ("aaaaab", "stop")


def test_rules_that_leave_no_token_fail_that_request_by_name(rig: Rig, oracle: Oracle) -> None:
    (letter,) = oracle.vocabulary.encode("z")
    results = rig.run([ask("x", regex("z+"), bad_word_ids=((letter,),)), ask("y", regex("z{4}"))])
    error = results["x", 0].error
    assert error is not None
    assert "grammar" in error.message
    assert oracle.text(results["y", 0].ids) == "zzzz"
    rig.assert_empty()


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (lark("start: nowhere"), "unknown name"),
        (lark("start: <[5000]>"), "too large"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "no output"),
        (schema({"not": {"type": "string"}}), "not supported of JSON Schema"),
    ],
)
def test_a_grammar_that_fails_hurts_its_own_request_only(rig: Rig, alone: dict, grammar: Grammar, why: str) -> None:
    good = mixed()[:2]
    results = rig.run([good[0], ask("bad", grammar, n=3), good[1]])
    error = results["bad", 0].error
    assert error is not None
    assert (error.code, why in error.message) == (Code.GRAMMAR_INVALID, True)
    del results["bad", 0], results["bad", 1], results["bad", 2]
    assert tokens(results) == {at: alone[at] for at in results}
    rig.assert_empty()


def test_a_request_can_end_while_its_grammar_is_compiled(llama: Path) -> None:
    """Aborted, in part or whole, or out of time: it leaves nothing, and its siblings go on."""
    rig = build(llama, **WIDE)
    slow = choice(*(f"entry {i} of many" for i in range(4000)))
    rig.engine.submit(ask("all", slow))
    rig.engine.submit(ask("first", slow, n=3))
    rig.engine.submit(ask("late", slow, deadline=0.0))
    assert rig.scheduler.all_held
    rig.engine.abort("all")
    rig.engine.abort("first", 0)
    outputs, errors, states = [], [], []
    while rig.engine.has_work:
        report = rig.step()
        outputs += report.outputs
        errors += report.errors
        states += report.states
    assert [(error.key, error.code) for error in errors] == [("late", Code.DEADLINE_EXCEEDED)]
    assert {(output.key, output.choice) for output in outputs if output.finish == "stop"} == {
        ("first", 1),
        ("first", 2),
    }
    assert ("first", "waiting", "grammar") in {(state.key, state.state, state.reason) for state in states}
    rig.assert_empty()
