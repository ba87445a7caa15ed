"""What must not be found anywhere in the sources: ways to run what came with a model, a message or a setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_imports import ROOT, sources

WORDS = {
    "trust_remote_code": "code of model repositories is never run",
    "allow_pickle": "arrays are read without pickle",
    "weights_only": "weights come from safetensors and GGUF alone",
    "recv_pyobj": "messages are msgpack",
    "add_safe_globals": "nothing is unpickled",
    "os.system": "no shell",
    "from_code": "no code objects from data",
}


def findings(text: str) -> Iterator[str]:
    """Yield what is wrong with one source text."""
    for word, why in WORDS.items():
        if re.search(rf"\b{re.escape(word)}\b", text):
            yield f"{word}: {why}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "shell" and not _is_false(node.value):
            yield "shell=...: no shell"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_no_source_has_any_of_it() -> None:
    wrong = [f"{path.relative_to(ROOT)}: {what}" for path in sources() for what in findings(path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "AutoConfig.from_pretrained(x, trust_remote_code=True)",
        "np.load(f, allow_pickle=True)",
        "torch.load(f, weights_only=False)",
        "subprocess.run(line, shell=True)",
        "os.system('x')",
    ],
)
def test_the_scan_sees_it(text: str) -> None:
    assert list(findings(text))
    assert not list(findings("subprocess.run(['a'], shell=False)"))


def test_templates_run_in_a_sandbox_only() -> None:
    """Every environment of jinja2 is an immutable sandboxed one."""
    makers = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2"):
                makers += [(path.name, alias.name) for alias in node.names if alias.name.endswith("Environment")]
    assert makers
    assert {name for _, name in makers} == {"ImmutableSandboxedEnvironment"}
