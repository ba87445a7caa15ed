r"""How text is cut into words before byte-level BPE, by the `tokenizer.ggml.pre` name of a GGUF file.

The names are llama.cpp's; the patterns are those of the models' own tokenizer.json files. A pattern
lists what one word may be; words are found from left to right, and what lies between is a word too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferd.load.errors import LoadError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER = r" ?[^\s\p{L}\p{N}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}[\r\n]*|{_TAIL}"
QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_OTHER}[\r\n]*|{_TAIL}"
QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_OTHER}[\r\n/]*|{_TAIL}"
)
TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_OTHER}[\r\n/]*|{_TAIL}"
DIGIT = r"\p{N}"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


class Pre(NamedTuple):
    """One way to cut text; each pattern cuts further what the ones before it left."""

    patterns: tuple[str, ...]
    add_bos: bool = False
    """Whether raw text gets a BOS where the file does not say."""
    ignore_merges: bool = False
    """A word that is a token is taken whole, even where no chain of merges leads to it."""
    nfc: bool = False


_GPT2 = Pre((GPT2,))
_DIGITS = Pre((DIGIT, GPT2))
_LLAMA3 = Pre((LLAMA3,), add_bos=True, ignore_merges=True)
_LLAMA3_PLAIN = Pre((LLAMA3,))
_QWEN2 = Pre((QWEN2,), nfc=True)

PRE_TOKENIZERS: dict[str, Pre] = {
    "default": Pre((PUNCTUATION, GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "olmo", "jais", "mpt", "exaone4", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3_PLAIN),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "stablelm2": Pre((QWEN2,)),
    "qwen35": Pre((QWEN35,), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Pre((GPT4O,))),
    "tekken": Pre((TEKKEN,), add_bos=True, ignore_merges=True),
}


def pre_tokenizer(pre: Pre) -> PreTokenizer:
    """Build the `tokenizers` object: cut by each pattern, then write bytes as their stand-ins."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    cuts: list[PreTokenizer] = [Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def find_pre(name: str, path: object) -> Pre:
    """Return the entry of a `tokenizer.ggml.pre` name. Raises LoadError."""
    if name not in PRE_TOKENIZERS:
        raise LoadError(
            f"{path}: tokenizer.ggml.pre: {name!r} is not one of the pre-tokenizers known here "
            f"({', '.join(sorted(PRE_TOKENIZERS))})"
        )
    return PRE_TOKENIZERS[name]
