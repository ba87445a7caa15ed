"""Vocabularies inside GGUF files, checked against the same vocabulary in Hugging Face form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

from inferd.load.errors import LoadError
from inferd.load.vocab import open_vocabulary
from inferd.load.vocab_gguf import table_from, vocabulary_from
from inferd.load.vocab_hf import hf_vocabulary
from inferd.load.vocab_pre import PRE_TOKENIZERS, pre_tokenizer
from tests.smollm2 import smollm2_of_transformers, smollm2_path
from tests.tiny import tiny_gguf
from tests.tiny_tokenizer import CHAT_TEMPLATE, SPECIALS, vocabulary, write_tokenizer

FILE = Path("model.gguf")


def metadata(**changes: object) -> dict[str, object]:
    """Return the tokenizer fields of a GGUF file; None removes one, dots in names are written `__`."""
    tokens, merges = vocabulary(290)
    fields: dict[str, object] = {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": tokens,
        "ggml.merges": merges,
        "ggml.token_type": [3 if t in SPECIALS or t.startswith("<|unused_") else 1 for t in tokens],
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 3,
        "chat_template": CHAT_TEMPLATE,
    }
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return {f"tokenizer.{name}": value for name, value in fields.items() if value is not None}


def build(**changes: object):
    return vocabulary_from(metadata(**changes), FILE)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    write_tokenizer(folder, 290)
    return build(), hf_vocabulary(folder)


@given(text=st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_both_forms_give_the_same_ids(both, text):
    gguf, hf = both
    for special in (False, True):
        assert gguf.encode(text, special_tokens=special) == hf.encode(text, special_tokens=special)


def test_both_forms_agree_on_everything_else(both):
    gguf, hf = both
    assert gguf.pieces == hf.pieces
    assert gguf.special_ids == hf.special_ids
    assert gguf.names["bos_token"] == hf.names["bos_token"]
    assert gguf.template == hf.template
    text = "the <|im_start|>hello world<|im_end|>"
    assert gguf.encode(text, special_tokens=True) == hf.encode(text, special_tokens=True)


def test_a_real_file_is_read(tmp_path):
    found = open_vocabulary(tiny_gguf(tmp_path))
    assert b"".join(found.pieces[i] for i in found.encode("hello world 42")) == b"hello world 42"
    assert found.template == CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (3,)),
        ({"ggml__eot_token_id": 1}, (1, 3)),
        ({"ggml__eot_token_id": 2, "ggml__eom_token_id": 1}, (1, 2, 3)),
        ({"ggml__eos_token_id": None}, ()),
        ({"ggml__eos_token_id": 0xFFFFFFFF, "ggml__eot_token_id": 1}, (1,)),
    ],
)
def test_end_tokens_are_the_union(changes, expected):
    assert build(**changes).eos_ids == expected


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [
        ("gpt-2", None, False),
        ("gpt-2", True, True),
        ("gpt-2", False, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_as_the_file_says_else_as_its_kind_does(pre, flag, expected):
    found = build(ggml__pre=pre, ggml__add_bos_token=flag)
    assert found.add_bos is expected
    ids = found.encode("the", add_bos=True)
    assert ids.count(0) == expected
    assert found.encode("<|bos|>the", special_tokens=True, add_bos=True).count(0) == 1


def test_user_defined_tokens_are_whole_but_not_special():
    types = metadata()["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    types[1] = 4
    found = build(ggml__token_type=types)
    assert found.encode("<|eos|>") == [1]
    assert found.pieces[1] == b"<|eos|>"
    assert 1 not in found.special_ids


def test_the_table_of_tokens_needs_no_tokenizer(tmp_path):
    tokens, _ = vocabulary(290)
    types = [4 if token == "<|eos|>" else 3 if token in SPECIALS else 1 for token in tokens]
    spelled = {280: "<é tool>", 281: "\N{GREEK SMALL LETTER ALPHA}x", 282: "a b"}  # not in the byte alphabet
    tokens = [spelled.get(index, token) for index, token in enumerate(tokens)]
    types = [4 if index == 280 else kind for index, kind in enumerate(types)]
    fields = metadata(ggml__tokens=tokens, ggml__token_type=types, ggml__merges=[])
    table = table_from(fields, FILE)
    assert table == vocabulary_from(fields, FILE).table
    assert [table.pieces[index].decode() for index in spelled] == list(spelled.values())
    assert table.pieces[tokens.index("<|eos|>")] == b"<|eos|>"
    assert set(table.pieces) >= {bytes([byte]) for byte in range(256)}
    program = f"""
from pathlib import Path
from inferd.load.checkpoint import open_checkpoint
import sys
assert open_checkpoint(Path({str(tiny_gguf(tmp_path))!r})).token_table().special_ids
print([name for name in sys.modules if name in ("tokenizers", "torch")])"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_named_templates():
    found = build(chat_template__tool_use="tools")
    assert (found.template, found.template_for(tools=True)) == (CHAT_TEMPLATE, "tools")
    assert build(chat_template=None).template is None


BROKEN = {
    "model": ({"ggml__model": "llama"}, "only byte-level BPE"),
    "no model": ({"ggml__model": None}, "only byte-level BPE"),
    "pre": ({"ggml__pre": "invented"}, r"tokenizer\.ggml\.pre: 'invented'"),
    "no tokens": ({"ggml__tokens": None}, r"tokens is missing"),
    "no merges": ({"ggml__merges": None}, r"merges is missing"),
    "token": ({"ggml__tokens": [1, 2]}, "array of strings"),
    "scalar": ({"ggml__tokens": "abc"}, "expected an array"),
    "twice": ({"ggml__tokens": ["a", "a"], "ggml__token_type": [1, 1], "ggml__merges": []}, "occur twice"),
    "merge": ({"ggml__merges": ["ab"]}, "not a pair"),
    "merge of three": ({"ggml__merges": ["a b c"]}, "not a pair"),
    "foreign merge": ({"ggml__merges": ["zz qq"]}, r"merges"),
    "types": ({"ggml__token_type": [1]}, "1 entries for 290"),
    "eos": ({"ggml__eos_token_id": 290}, "eos_token_id: 290 is not below"),
    "eos type": ({"ggml__eos_token_id": "x"}, "eos_token_id"),
    "flag": ({"ggml__add_bos_token": 1}, "add_bos_token"),
    "template": ({"chat_template": 5}, "chat_template"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN)
def test_malformed_fields_are_named(changes, message):
    with pytest.raises(LoadError, match=message) as caught:
        build(**changes)
    assert "model.gguf" in str(caught.value)


SAMPLES = (
    "I'll say: we'VE 12345 things, don't we?  Tabs\t\tand   runs   \n\n\n  of\r\nlines \u00a0x\u3000y",
    "x = foo_bar(1.5e-3, [2, 33, 444, 5555]) != y // 7; /* ok */ naïve café ПРИВЕТ мир 你好世界 123年 ４５６ ½ ² Ⅷ ⑨",
    "e\u0301 👨‍👩‍👧‍👦 🇩🇪 العربية १२३ हिन्दी ไทย \ufffd \x00 \x7f $$$ <<>> ``` ... ----- CamelCaseHTTPServer",
    "   ",
    "\n",
    " a",
)


def words(pre, text: str) -> list[tuple[int, int]]:
    return [span for _, span in pre.pre_tokenize_str(text)]


@pytest.mark.parametrize("text", SAMPLES)
def test_smollm_words_are_those_of_its_tokenizer_json(text):
    """Its own file says: single digits, then GPT-2 words."""
    expected = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    assert words(pre_tokenizer(PRE_TOKENIZERS["smollm"]), text) == words(expected, text)


@pytest.mark.parametrize("text", SAMPLES)
def test_gpt2_words_are_those_of_the_library(text):
    expected = ByteLevel(add_prefix_space=False, use_regex=True)
    assert words(pre_tokenizer(PRE_TOKENIZERS["gpt-2"]), text) == words(expected, text)


@pytest.mark.parametrize("name", ["qwen2", "qwen35", "llama-bpe", "gpt-4o", "tekken"])
@pytest.mark.parametrize("text", SAMPLES)
def test_other_words_are_those_that_transformers_knows(name, text):
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    split = Split(Regex(mapping.GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated")
    expected = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    assert words(pre_tokenizer(PRE_TOKENIZERS[name]), text) == words(expected, text)


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_kind_keeps_the_text(name):
    found = build(ggml__pre=name)
    for text in SAMPLES:
        kept = b"".join(found.pieces[i] for i in found.encode(text)).decode()
        assert kept == (text if found.tokenizer.normalizer is None else found.tokenizer.normalizer.normalize_str(text))


# --- the default model ----------------------------------------------------------------------------

KNOWN = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "\n": [198],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
}
"""Published ids of SmolLM2's own tokenizer."""


@pytest.fixture(scope="module")
def smollm2():
    return open_vocabulary(smollm2_path())


@pytest.mark.smollm2
@pytest.mark.parametrize("text", KNOWN)
def test_smollm2_ids_are_the_published_ones(smollm2, text):
    assert smollm2.encode(text) == KNOWN[text]


@pytest.mark.smollm2
def test_smollm2_facts(smollm2):
    assert (len(smollm2.pieces), smollm2.eos_ids, smollm2.bos_id, smollm2.add_bos) == (49152, (2,), 1, False)
    assert len(smollm2.special_ids) == 17
    assert len({bytes([b]) for b in range(256)} - set(smollm2.pieces)) == 21


@pytest.mark.smollm2
def test_smollm2_round_trips_and_agrees_with_transformers(smollm2):
    """transformers cuts numbers as GPT-2 does, which is not this model's way: digits are left out there."""
    hf = smollm2_of_transformers()
    texts = [*SAMPLES, *(f.read_text() for f in sorted(Path(__file__).parent.parent.glob("*/*.py"))[:20])]
    for text in texts:
        assert b"".join(smollm2.pieces[i] for i in smollm2.encode(text)).decode() == text
        bare = "".join(c for c in text if not c.isnumeric())
        assert smollm2.encode(bare, special_tokens=True) == hf.encode(bare, add_special_tokens=False)


@pytest.mark.smollm2
@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_smollm2_round_trips_all_but_the_bytes_it_lacks(smollm2, text):
    """Its vocabulary has no token for 21 bytes (rare controls, unassigned planes); it drops those."""
    lacking = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}
    text = "".join(c for c in text if not lacking & set(c.encode()))
    ids = smollm2.encode(text)
    assert b"".join(smollm2.pieces[i] for i in ids).decode() == text
    assert smollm2.tokenizer.decode(ids) == text


def test_pieces_agree_with_the_decoder_of_the_library(both):
    gguf, _ = both
    tokenizer: Tokenizer = gguf.tokenizer
    for token, piece in enumerate(gguf.pieces):
        assert tokenizer.decode([token], skip_special_tokens=True) == piece.decode("utf-8", "replace")
