"""Find the chat templates of a model, in all the forms in which they are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inferd.load.errors import LoadError

MAX_TEMPLATE_CHARS = 512 * 1024
"""Longer than any sound template by a factor of twenty."""


def hf_templates(folder: Path, tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Return templates by name: `chat_template.jinja` beside the tokenizer wins over its config."""
    where = folder / "tokenizer_config.json"
    templates = named_templates(tokenizer_config.get("chat_template"), f"{where}: chat_template")
    if (default := folder / "chat_template.jinja").is_file():
        templates = {"default": read_template(default)}
    more = folder / "additional_chat_templates"
    for file in sorted(more.glob("*.jinja")) if more.is_dir() else ():
        templates[file.stem] = read_template(file)
    return templates


def gguf_templates(metadata: Mapping[str, object], path: Path) -> dict[str, str]:
    """Return `tokenizer.chat_template` as `default`, and `tokenizer.chat_template.NAME` as NAME."""
    key = "tokenizer.chat_template"
    templates = named_templates(metadata.get(key), f"{path}: {key}")
    for name, value in metadata.items():
        if name.startswith(f"{key}.") and isinstance(value, str):
            templates[name.removeprefix(f"{key}.")] = _checked(value, f"{path}: {name}")
    return templates


def named_templates(value: object, where: str) -> dict[str, str]:
    """Read a template field: one string, a list of {name, template}, or a table of them; absent = none."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        return {"default": _checked(value, where)}
    if isinstance(value, Mapping):
        return {str(name): _checked(text, f"{where}.{name}") for name, text in value.items()}
    if isinstance(value, list):
        return dict(_entry(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    raise LoadError(f"{where}: expected a template, a list or a table of them, found {type(value).__name__}")


def read_template(path: Path) -> str:
    """Read a jinja file. Raises LoadError."""
    try:
        return _checked(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from None


def _entry(entry: object, where: str) -> tuple[str, str]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise LoadError(f"{where}: expected an object with `name` and `template`")
    return entry["name"], _checked(entry.get("template"), where)


def _checked(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise LoadError(f"{where}: a template is a string, found {type(text).__name__}")
    if len(text) > MAX_TEMPLATE_CHARS:
        raise LoadError(f"{where}: {len(text)} characters exceed the limit of {MAX_TEMPLATE_CHARS} for a template")
    return text
