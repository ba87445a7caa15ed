"""What is fuzzed: where inputs come from, what reads them, and which errors are the right answer."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.bench.fuzz.mutate import mutate, mutate_value


def _words(*lines: str) -> tuple[bytes, ...]:
    """Split lines into tokens; a tilde inside one stands for a space."""
    return tuple(
        word.replace("~", " ").encode() if len(word) > 1 else word.encode() for word in " ".join(lines).split()
    )


class Target(ABC):
    """One reader of hostile input."""

    name: str
    seconds: float = 3.0
    """Longest time for one input."""
    tokens: Sequence[bytes] = ()
    may_die = False
    """It runs in a process of its own in the daemon too, which is started anew when it dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """For files; on a memory file system where there is one."""

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Return valid inputs."""

    @abstractmethod
    def read(self, data: bytes) -> str:
        """Take one input as the daemon would; return the error it is answered with, empty when it is accepted.

        Anything raised is a fault.
        """

    def change(self, rng: Random, corpus: Sequence[bytes]) -> bytes:
        return mutate(rng, rng.choice(corpus), corpus, self.tokens)


class Frames(Target):
    """Messages of clients as the front decodes and checks them."""

    name = "frames"
    tokens = (b"\xa4type", b"\xa8generate", b"\xa8sampling", b"\xa8messages", b"\xc0", b"\xc1", b"\xdf\xff\xff\xff\xff")

    def seeds(self) -> list[bytes]:
        from inferd_client.protocol import encode
        from tests.client.golden_messages import CONTROL, DATA

        return [encode(message)[1] for message in (*DATA, *CONTROL)]

    def change(self, rng: Random, corpus: Sequence[bytes]) -> bytes:
        return _change_tree(rng, corpus, super().change, msgspec.msgpack.decode, msgspec.msgpack.encode)

    def read(self, data: bytes) -> str:
        from inferd.front.errors import Refusal
        from inferd.front.validate import check_generate
        from inferd_client.protocol import FrameError, Generate, control_decoder, data_decoder, decode, request_id_of
        from inferd_client.protocol.codes import HEADER

        errors = []
        for decoder in (data_decoder, control_decoder):
            try:
                message = decode([HEADER, data], decoder)
                if isinstance(message, Generate):
                    check_generate(message)
                return ""
            except (FrameError, Refusal) as error:
                errors.append(str(error) or type(error).__name__)
                request_id_of([HEADER, data])
        return " / ".join(errors)


class Gguf(Target):
    """GGUF files: header, and the vocabulary inside."""

    name = "gguf"
    tokens = (b"GGUF", b"general.alignment", b"tokenizer.ggml.tokens", b"\x08\0\0\0", b"\x09\0\0\0", b"\xff" * 8)

    def seeds(self) -> list[bytes]:
        from tests.load.gguf_fields import build
        from tests.tiny import tiny_gguf

        small = tiny_gguf(self.folder / "seed", hidden=32, inner=32, layers=1, heads=2, kv_heads=1)
        file = small if small.is_file() else next(small.glob("*.gguf"))
        return [build(), file.read_bytes()]

    def read(self, data: bytes) -> str:
        from inferd.load.errors import LoadError
        from inferd.load.gguf import GgufFile
        from inferd.load.vocab import open_vocabulary

        path = self.folder / "input.gguf"
        path.write_bytes(data)
        try:
            GgufFile(path)
            open_vocabulary(path)
        except LoadError as error:
            return str(error)
        return ""


class Safetensors(Target):
    """safetensors files: the header, and what the official library makes of those that pass."""

    name = "safetensors"
    tokens = (b'"dtype"', b'"shape"', b'"data_offsets"', b"[0,16]", b"__metadata__", b'"F32"', b"\xff" * 8, b"1e9")

    def seeds(self) -> list[bytes]:
        header = {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
        }
        return [_with_length(json.dumps(header).encode(), bytes(22)), _with_length(b"{}", b"")]

    def change(self, rng: Random, corpus: Sequence[bytes]) -> bytes:
        data = rng.choice(corpus)
        if rng.random() < 0.5:
            return mutate(rng, data, corpus, self.tokens)
        size = int.from_bytes(data[:8], "little")
        body, rest = data[8 : 8 + size], data[8 + size :]
        return _with_length(_change_tree(rng, [body], super().change, json.loads, _dump), rest)

    def read(self, data: bytes) -> str:
        from safetensors import safe_open

        from inferd.load.errors import LoadError
        from inferd.load.safetensors_header import read_header

        path = self.folder / "input.safetensors"
        path.write_bytes(data)
        try:
            metas = read_header(path)
        except LoadError as error:
            return str(error)
        try:
            with safe_open(path, "np") as opened:
                assert set(opened.keys()) == set(metas)
        except Exception as error:  # the library may know fewer types than we do; it may not end the process
            return f"library: {type(error).__name__}"
        return ""


class ConfigFiles(Target):
    """config.toml."""

    name = "config"
    tokens = (b"[models.x]", b"[plugin.draft.ngram]", b"engine.", b'"""', b"= 1e999", b"[[", b"\n#", b"= {a={", b"'\n")

    def seeds(self) -> list[bytes]:
        text = (Path(__file__).parents[3] / "configs" / "config.toml").read_text()
        return [
            re.sub(r"^#(?=[\w\[])", "", text, flags=re.MULTILINE).encode(),
            b"preload = false\n[engine]\nchunk = 5\n",
        ]

    def read(self, data: bytes) -> str:
        from inferd.config.errors import ConfigError
        from inferd.config.layers import Locations, load_config

        path = self.folder / "input.toml"
        path.write_bytes(data)
        nowhere = Locations(self.folder / "none", self.folder / "none.toml")
        try:
            load_config(path, locations=nowhere)
        except ConfigError as error:
            return str(error)
        return ""


class Templates(Target):
    """Chat templates, compiled and rendered within the limits of the text process."""

    name = "templates"
    tokens = _words(
        "{{ }} {% %} {%- -%} {# #} .__class__ |tojson |safe range(9**9) namespace( loop.index ''*10**9 2**9**9",
        "raise_exception('') |attr('__init__') messages[0]['content'] lipsum cycler( |map('list') |join ~",
        "{%for~m~in~messages%} {%endfor%} {%if~1%} {%endif%} {%macro~f()%} {%endmacro%} f() {%set~x=[x,x]%}",
    )

    def seeds(self) -> list[bytes]:
        from tests.tiny_tokenizer import CHAT_TEMPLATE

        tools = b"{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}{% set n = namespace(i=0) %}"
        loop = b"{% for m in messages %}{% set n.i = n.i + 1 %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
        macro = b"{% macro f(x) -%}{{ x ~ eos_token }}{%- endmacro %}{{ f(messages[0].role) }}{{ strftime_now('%Y') }}"
        return [CHAT_TEMPLATE.encode(), tools + loop, macro]

    def read(self, data: bytes) -> str:
        from inferd.text.errors import TextError
        from inferd.text.template import ChatTemplate, RenderLimits

        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        variables = {"messages": messages, "tools": None, "eos_token": "</s>", "add_generation_prompt": True}
        try:
            ChatTemplate(data.decode(errors="replace"), RenderLimits(100_000, 0.3)).render(variables)
        except TextError as error:
            return str(error)
        return ""


class Schemas(Target):
    """JSON schemas, regular expressions, Lark grammars and choices, tried as the grammar process does."""

    name = "schemas"
    may_die = True
    seconds = 20.0
    tokens = _words(
        '"$ref" "#/$defs/a" "pattern" "(a|b)*" "enum" "allOf" "anyOf" "additionalProperties" "minItems" 99999',
        'start: "a"+ /[a-z]+/ %json {} | * ( ) {1,9999} [^\\n] \\d{400} (?=x) (((( "multipleOf" 1e-9 "maxLength"',
    )

    def seeds(self) -> list[bytes]:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Z][a-z]+$", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 4},
                "next": {"$ref": "#/$defs/node"},
            },
            "required": ["name"],
            "$defs": {
                "node": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}}]}
            },
            "additionalProperties": False,
        }
        return [
            b"s" + json.dumps(schema).encode(),
            b"s" + json.dumps({"type": "number", "multipleOf": 0.5}).encode(),
            b"r[a-z]{2,8}(-[0-9]+)?",
            b'gstart: item ("," item)*\nitem: /[0-9]+/ | "(" start ")"',
            b'c["yes","no","maybe"]',
        ]

    def change(self, rng: Random, corpus: Sequence[bytes]) -> bytes:
        data = rng.choice(corpus)
        if data[:1] == b"s" and rng.random() < 0.6:
            return b"s" + _change_tree(rng, [data[1:]], super().change, json.loads, _dump)
        return data[:1] + mutate(rng, data[1:], corpus, self.tokens)

    def read(self, data: bytes) -> str:
        from inferd.grammar.trial import try_grammar
        from inferd.link import Grammar

        kinds = {b"s": "json_schema", b"r": "regex", b"g": "grammar", b"c": "choice"}
        text = data[1:].decode(errors="replace")
        return try_grammar(Grammar(kind=kinds.get(data[:1], "regex"), text=text))  # type: ignore[arg-type]


TARGETS: dict[str, type[Target]] = {t.name: t for t in (Frames, Gguf, Safetensors, ConfigFiles, Templates, Schemas)}


def outcome_of(error: str) -> str:
    """Return the kind of an error: its words without what is quoted or counted."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|/\S+|\d+|[^\x20-\x7e]", "", error)[:120]


def _change_tree(rng: Random, corpus: Sequence[bytes], blind: Any, decode: Any, encode: Any) -> bytes:
    """Change a value of a tree, or bytes where the input is no tree any more."""
    if rng.random() < 0.6:
        try:
            return encode(mutate_value(rng, decode(rng.choice(corpus))))
        except (ValueError, RecursionError, TypeError, OverflowError, msgspec.MsgspecError):
            pass
    return blind(rng, corpus)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode(errors="surrogatepass")


def _with_length(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data
