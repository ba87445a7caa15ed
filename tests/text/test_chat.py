"""Whole chats: content without text, tools, arguments, BOS, forbidden words, input that is not text."""

from __future__ import annotations

import json

import pytest

from inferd.load.vocab import open_vocabulary
from inferd.load.vocab_bytes import byte_vocabulary
from inferd.text.errors import TextError
from inferd.text.model import TextModel
from tests.smollm2 import smollm2_of_transformers, smollm2_path
from tests.tiny_tokenizer import BOS_ID, IM_END_ID, IM_START_ID, write_tokenizer

USER = {"role": "user", "content": "hello world"}
TOOLS_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:"
    "{% if m.content is none %}-{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %};"
    "{% endfor %}"
)


@pytest.fixture
def model(tmp_path):
    write_tokenizer(tmp_path, 290)
    return TextModel(open_vocabulary(tmp_path))


def with_template(tmp_path, source: str, **options: bool) -> TextModel:
    write_tokenizer(tmp_path, 290, **options)
    (tmp_path / "chat_template.jinja").write_text(source)
    return TextModel(open_vocabulary(tmp_path))


def test_a_chat(model):
    prompt = model.render([USER])
    assert prompt.text == "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids.count(IM_START_ID) == 2
    assert prompt.ids.count(IM_END_ID) == 1
    assert prompt.ids == model.vocabulary.encode(prompt.text, special_tokens=True)


def test_arguments_reach_the_template(tmp_path):
    model = with_template(tmp_path, "{{ enable_thinking }}{{ add_generation_prompt }}{{ bos_token }}")
    assert model.render([USER], arguments={"enable_thinking": False}).text == "FalseTrue<|bos|>"
    assert model.render([USER], arguments={"add_generation_prompt": False}).text == "False<|bos|>"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"messages": "x"}, "template_args.messages"),
        ({"bos_token": "x"}, "template_args.bos_token"),
        ({"raise_exception": "x"}, "template_args.raise_exception"),
        ({"_x": 1}, "template_args._x"),
        ({"a b": 1}, "template_args.a b"),
        ({"x": [1]}, "template_args.x"),
        ({f"a{i}": 1 for i in range(99)}, "template_args"),
    ],
)
def test_arguments_may_not_replace_the_templates_own_names(model, arguments, field):
    with pytest.raises(TextError) as caught:
        model.render([USER], arguments=arguments)
    assert caught.value.field == field


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def test_tool_calls_and_answers_without_content(tmp_path):
    model = with_template(tmp_path, TOOLS_TEMPLATE)
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "7"}]
    assert model.render(messages).text == 'user:hello world;assistant:-[f {"x": 1}];tool:7;'


def test_tools_reach_the_template_in_their_order(tmp_path):
    tools = [{"type": "function", "function": {"name": "g", "a": 1}}]
    assert with_template(tmp_path, TOOLS_TEMPLATE).render([USER], tools).text.startswith(json.dumps(tools))


def test_tools_that_a_template_would_drop_are_refused(model):
    with pytest.raises(TextError, match="takes no tools") as caught:
        model.render([USER], [{"type": "function"}])
    assert caught.value.field == "tools"
    with pytest.raises(TextError, match="tool calls") as caught:
        model.render([{"role": "assistant", "tool_calls": [CALL]}])
    assert caught.value.field == "messages[0].tool_calls"


def test_a_template_without_calls_never_sees_none(model):
    answer = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert "assistant\n<|im_end|>" in model.render([USER, answer]).text


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["text"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1]"),
        ([{"role": 5, "content": "x"}], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ],
)
def test_malformed_messages_name_the_field(model, messages, field):
    with pytest.raises(TextError) as caught:
        model.render(messages)
    assert caught.value.field == field


def test_arguments_that_are_not_json_are_named(tmp_path):
    call = {"function": {"name": "f", "arguments": "{"}}
    with pytest.raises(TextError) as caught:
        with_template(tmp_path, TOOLS_TEMPLATE).render([{"role": "assistant", "tool_calls": [call]}])
    assert caught.value.field == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize("in_template", [True, False])
def test_a_rendered_chat_has_the_bos_of_its_template_only(tmp_path, in_template):
    source = "{{ bos_token }}" * in_template + "{{ messages[0].content }}"
    ids = with_template(tmp_path, source, add_bos=True).render([USER]).ids
    assert ids.count(BOS_ID) == in_template


def test_without_a_template_the_remedy_is_named(tmp_path):
    write_tokenizer(tmp_path, 290)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for template, message in (
        (None, "no chat template"),
        ({"a": "x", "b": "y"}, "no default chat template, only a, b"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
        with pytest.raises(TextError, match=message):
            TextModel(open_vocabulary(tmp_path)).render([USER])


def test_a_template_file_replaces_the_models_own(tmp_path):
    write_tokenizer(tmp_path, 290)
    file = tmp_path / "mine.jinja"
    file.write_text("mine")
    assert TextModel(open_vocabulary(tmp_path), template_path=str(file)).render([USER]).text == "mine"


def test_a_template_with_a_syntax_error_does_not_stop_raw_prompts(tmp_path):
    model = with_template(tmp_path, "ok\n{% if %}")
    assert model.has_template
    assert model.tokenize("the", add_bos=False, special_tokens=False)
    with pytest.raises(TextError, match="chat template line 2"):
        model.render([USER])


@pytest.mark.parametrize(
    ("text", "message"), [("a\ud800b", r"character 1 is a lone surrogate \(U\+D800\)"), ("\udfff", "U.DFFF")]
)
def test_lone_surrogates_are_refused(model, text, message):
    with pytest.raises(TextError, match=message):
        model.tokenize(text, add_bos=False, special_tokens=False)
    with pytest.raises(TextError, match="surrogate"):
        model.render([{"role": "user", "content": text}])
    with pytest.raises(TextError, match="surrogate") as caught:
        model.bad_words([text])
    assert caught.value.field == "bad_words"


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\x1b[31m", "\ufeff", " ", "\u2028"])
def test_odd_characters_are_text(model, text):
    ids = model.tokenize(text, add_bos=False, special_tokens=False)
    assert b"".join(model.vocabulary.pieces[i] for i in ids).decode() == text


def test_empty_text_is_bos_or_nothing(tmp_path, model):
    assert model.tokenize("", add_bos=True, special_tokens=False) == []
    write_tokenizer(tmp_path, 290, add_bos=True)
    with_bos = TextModel(open_vocabulary(tmp_path))
    assert with_bos.tokenize("", add_bos=True, special_tokens=False) == [BOS_ID]
    assert with_bos.tokenize("", add_bos=False, special_tokens=False) == []


def test_bad_words_with_and_without_a_space(model):
    encode = model.vocabulary.encode
    assert model.bad_words(["s"]) == (tuple(encode("s")), tuple(encode(" s")))
    assert len(encode(" s")) == 1
    assert model.bad_words([" s", "s"]) == model.bad_words(["s"])
    assert model.bad_words([" "]) == (tuple(encode(" ")),)
    assert model.bad_words([]) == ()


def test_a_bad_word_whose_spaced_form_ends_in_the_bare_one_is_listed_once():
    assert TextModel(byte_vocabulary()).bad_words(["ab", "b"]) == ((97, 98), (98,))


def test_bad_words_spelling_special_tokens_are_text(model):
    assert not model.vocabulary.special_ids & {i for ids in model.bad_words(["<|im_end|>"]) for i in ids}


def test_the_byte_vocabulary_needs_no_tokenizers():
    model = TextModel(byte_vocabulary())
    prompt = model.render([{"role": "user", "content": "é"}])
    assert prompt.ids[0] == 258
    assert prompt.ids.count(259) == 1
    assert bytes(i for i in prompt.ids if i < 256).decode() == "user\né\nassistant\n"
    assert model.tokenize("é<|eos|>", add_bos=True, special_tokens=True) == [0xC3, 0xA9, 257]


def test_a_megabyte_is_tokenized_in_time(model):
    import time

    start = time.process_time()
    for text in ("a" * 1_000_000, " " * 1_000_000, "hello world 1 " * 70_000):
        assert model.tokenize(text, add_bos=False, special_tokens=False)
    assert time.process_time() - start < 20


@pytest.mark.smollm2
def test_smollm2_chats_are_those_of_transformers():
    hf, model = smollm2_of_transformers(), TextModel(open_vocabulary(smollm2_path()))
    chats = [
        [USER],
        [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Hi!\n"}, USER],
        [{"role": "user", "content": "  indented\n\n\ttext é 😀 "}],
    ]
    for chat in chats:
        prompt = model.render(chat)
        assert prompt.text == hf.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = hf.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert prompt.ids == ids
