"""Vocabularies of Hugging Face directories: ids, end tokens, BOS, templates, in every spelling seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inferd.load.errors import LoadError
from inferd.load.vocab import open_vocabulary
from tests.tiny_tokenizer import BOS_ID, EOS_ID, IM_END_ID, SPECIALS, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, 290)
    return tmp_path


def edit(path: Path, **changes: object) -> None:
    """Change fields of a JSON file; None removes one. An absent file is made."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@given(text=st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_ids_are_those_of_the_library(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp() / "ids"
    if not folder.exists():
        folder.mkdir()
        write_tokenizer(folder, 290)
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert _shared(folder).encode(text, special_tokens=True) == expected


_OPEN: dict[Path, object] = {}


def _shared(folder: Path):
    if folder not in _OPEN:
        _OPEN[folder] = open_vocabulary(folder)
    return _OPEN[folder]


def test_spelled_special_tokens_are_text_unless_asked_for(folder):
    vocabulary = open_vocabulary(folder)
    text = f"the{SPECIALS[IM_END_ID]}the"
    special, plain = vocabulary.encode(text, special_tokens=True), vocabulary.encode(text)
    assert IM_END_ID in special
    assert not vocabulary.special_ids & set(plain)
    assert b"".join(vocabulary.pieces[i] for i in plain).decode() == text


def test_pieces(folder):
    vocabulary = open_vocabulary(folder)
    assert len(vocabulary.pieces) == 290
    assert vocabulary.pieces[BOS_ID] == b""
    assert b" the" in vocabulary.pieces
    assert {bytes([b]) for b in range(256)} <= set(vocabulary.pieces)


def test_added_tokens_that_are_not_special_have_text(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["<é tool>"] = 290
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"].append({"id": 290, "content": "<é tool>", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    vocabulary = open_vocabulary(folder)
    assert vocabulary.encode("<é tool>") == [290]
    assert vocabulary.pieces[290] == "<é tool>".encode()
    assert 290 not in vocabulary.special_ids


SOURCES = {
    "none": ({}, {}, None, ()),
    "int": ({"eos_token_id": 7}, {}, None, (7,)),
    "list": ({"eos_token_id": [9, 7]}, {}, None, (7, 9)),
    "config": ({}, {"eos_token_id": 5}, None, (5,)),
    "all": ({"eos_token_id": [106, 1]}, {"eos_token_id": [5]}, SPECIALS[IM_END_ID], (1, 3, 5, 106)),
    "nested": ({}, {"text_config": {"eos_token_id": 8}}, None, (8,)),
    "negative": ({"eos_token_id": -1}, {}, None, ()),
    "object": ({}, {}, {"content": SPECIALS[EOS_ID]}, (EOS_ID,)),
}


@pytest.mark.parametrize(("generation", "config", "token", "expected"), SOURCES.values(), ids=SOURCES)
def test_end_tokens_are_the_union_of_all_sources(folder, generation, config, token, expected):
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(config))
    edit(folder / "tokenizer_config.json", eos_token=token)
    assert open_vocabulary(folder).eos_ids == expected


@pytest.mark.parametrize("value", ["2", 1.5, True, [1, None]])
def test_an_end_token_of_a_wrong_type_is_named(folder, value):
    edit(folder / "generation_config.json", eos_token_id=value)
    with pytest.raises(LoadError, match=r"generation_config\.json: eos_token_id"):
        open_vocabulary(folder)


@pytest.mark.parametrize(
    ("post_processor", "declared", "expected"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_bos_is_added_where_config_or_post_processor_say_so(tmp_path, post_processor, declared, expected):
    write_tokenizer(tmp_path, 290, add_bos=post_processor)
    edit(tmp_path / "tokenizer_config.json", add_bos_token=declared)
    vocabulary = open_vocabulary(tmp_path)
    assert vocabulary.add_bos is expected
    assert (vocabulary.encode("the", add_bos=True)[0] == BOS_ID) is expected
    assert vocabulary.encode("the")[0] != BOS_ID


def test_bos_is_never_doubled(tmp_path):
    write_tokenizer(tmp_path, 290, add_bos=True)
    vocabulary = open_vocabulary(tmp_path)
    ids = vocabulary.encode(f"{SPECIALS[BOS_ID]}the", special_tokens=True, add_bos=True)
    assert ids.count(BOS_ID) == 1
    assert vocabulary.encode("", add_bos=True) == [BOS_ID]


@pytest.mark.parametrize("bos", [SPECIALS[BOS_ID], {"content": SPECIALS[BOS_ID], "lstrip": False}])
def test_bos_as_text_or_object(folder, bos):
    edit(folder / "tokenizer_config.json", bos_token=bos)
    vocabulary = open_vocabulary(folder)
    assert vocabulary.bos_id == BOS_ID
    assert vocabulary.names["bos_token"] == SPECIALS[BOS_ID]


def test_a_token_named_only_by_the_config_is_special(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != SPECIALS[IM_END_ID]]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    vocabulary = open_vocabulary(folder)
    assert IM_END_ID in vocabulary.special_ids
    assert vocabulary.encode(SPECIALS[IM_END_ID], special_tokens=True) == [IM_END_ID]
    assert len(vocabulary.pieces) == 290


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
TEMPLATES = {
    "string": ("D", "D", "D"),
    "list": (NAMED, "D", "T"),
    "table": ({"default": "D", "rag": "R"}, "D", "D"),
    "only one": ([{"name": "odd", "template": "O"}], "O", "O"),
    "no default": ([{"name": "a", "template": "A"}, {"name": "b", "template": "B"}], None, None),
    "missing": (None, None, None),
    "empty": ("", None, None),
}


@pytest.mark.parametrize(("value", "plain", "tools"), TEMPLATES.values(), ids=TEMPLATES)
def test_templates_in_all_forms(folder, value, plain, tools):
    edit(folder / "tokenizer_config.json", chat_template=value)
    vocabulary = open_vocabulary(folder)
    assert vocabulary.template == plain
    assert vocabulary.template_for(tools=True) == tools


def test_a_jinja_file_wins(folder):
    (folder / "chat_template.jinja").write_text("from file é", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    vocabulary = open_vocabulary(folder)
    assert vocabulary.template == "from file é"
    assert vocabulary.template_for(tools=True) == "tools"


@pytest.mark.parametrize("value", [7, [{"name": "x"}], {"default": 3}, ["text"], "x" * 600_000])
def test_a_malformed_template_is_named(folder, value):
    edit(folder / "tokenizer_config.json", chat_template=value)
    with pytest.raises(LoadError, match="chat_template"):
        open_vocabulary(folder)


def test_errors_name_the_file(folder, tmp_path):
    with pytest.raises(LoadError, match="no such file"):
        open_vocabulary(tmp_path / "absent")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(LoadError, match=r"tokenizer_config\.json"):
        open_vocabulary(folder)
    write_tokenizer(folder, 290)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"tokenizer\.json: missing"):
        open_vocabulary(folder)


@pytest.mark.parametrize("change", [{"type": "Unigram"}, {"type": "WordPiece"}])
def test_other_kinds_of_tokenizer_are_refused(folder, change):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] |= change
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(LoadError, match="only byte-level BPE"):
        open_vocabulary(folder)


def test_bpe_that_is_not_byte_level_is_refused(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(LoadError, match="only byte-level BPE"):
        open_vocabulary(folder)


def test_a_broken_tokenizer_is_a_load_error(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"].append(["nothing", "here"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(LoadError, match=r"tokenizer\.json"):
        open_vocabulary(folder)
