"""ARCHITECTURE.md has a line for every module, and none for a module that is gone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("clients", "kernels", "daemon", "plugins", "tui")


def listed() -> set[str]:
    found: set[str] = set()
    folder = ""
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if head := re.match(r"\*\*`([^`]+)/`\*\*", line):
            folder = head[1]
        elif entry := re.match(r"- `([^`]+\.py)`: \S", line):
            found.add(f"{folder}/{entry[1]}")
    return found


def modules() -> set[str]:
    files = (path for top in TOPS for path in (ROOT / top).rglob("*.py") if path.name != "__init__.py")
    return {str(path.relative_to(ROOT)) for path in files}


def test_every_module_has_its_line():
    assert sorted(modules() - listed()) == []


def test_no_line_is_stale():
    assert sorted(listed() - modules()) == []


def test_every_package_says_what_it_is():
    """In its `__init__.py`, and in the same words in ARCHITECTURE.md."""
    heads = dict(re.findall(r"^\*\*`([^`]+)/`\*\* (.+)$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    packages = [path for top in TOPS for path in (ROOT / top).rglob("__init__.py")]
    first = {str(p.parent.relative_to(ROOT)): p.read_text().split('"""')[1].splitlines()[0] for p in packages}
    assert heads == first
    assert all(len(words.split()) > 2 for words in heads.values())
