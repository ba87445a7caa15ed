"""Who may import whom, what is never used, and what a light import must not drag in."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("clients", "kernels", "daemon", "plugins", "tui")
FIRST_PARTY = ("inferd_client", "inferd_kernels", "inferd_plugins", "inferd_tui", "inferd_gateway", "inferd")


class Rule(NamedTuple):
    """What the modules under a prefix may import besides the standard library and themselves."""

    third_party: frozenset[str]
    first_party: tuple[str, ...] = ()
    typing_only: frozenset[str] = frozenset()
    """Third-party packages allowed under TYPE_CHECKING as well."""


def rule(third_party: str, first_party: str = "", typing_only: str = "") -> Rule:
    return Rule(frozenset(third_party.split()), tuple(first_party.split()), frozenset(typing_only.split()))


DAEMON = "inferd inferd_client.protocol inferd_client.endpoints"

# The longest prefix that matches a module is its rule.
RULES = {
    "inferd_client": rule("zmq msgspec"),
    "inferd_client.testing": rule("zmq msgspec pytest", "inferd_client"),
    "inferd_gateway": rule("starlette uvicorn msgspec", "inferd_client"),
    "inferd_kernels": rule("torch triton numpy"),
    "inferd_plugins": rule("torch msgspec pluggy", "inferd.plugin inferd_kernels"),
    "inferd_plugins.kv": rule("msgspec pluggy", "inferd.plugin"),
    "inferd_plugins.draft": rule("msgspec pluggy", "inferd.plugin"),
    "inferd_tui": rule("textual rich", "inferd_client"),
    "inferd.plugin": rule("pluggy msgspec", "inferd_kernels.reference", "torch"),
    "inferd.plugin.conformance": rule("torch msgspec", "inferd.plugin inferd_kernels.reference"),
    "inferd.config": rule("msgspec tomlkit", "inferd.plugin.types inferd_client.endpoints"),
    "inferd.cli": rule("click rich msgspec", "inferd inferd_client inferd_tui inferd_gateway"),
    "inferd.bench.render": rule("matplotlib", "inferd"),
    "inferd.bench.serve": rule("msgspec numpy matplotlib", "inferd inferd_client inferd_tui"),
    "inferd.front": rule("zmq msgspec psutil structlog prometheus_client", DAEMON),
    "inferd.doctor": rule("zmq msgspec psutil torch", "inferd inferd_client inferd_kernels"),
    "inferd.devices": rule("psutil pynvml"),
    "inferd.grammar": rule("zmq msgspec numpy llguidance", DAEMON),
    "inferd.text": rule("zmq msgspec jinja2 tokenizers", DAEMON),
    "inferd.load": rule("msgspec torch safetensors tokenizers huggingface_hub", DAEMON),
    "inferd.engine": rule("zmq msgspec numpy psutil", f"{DAEMON} inferd_kernels", "torch llguidance"),
    "inferd.model": rule("torch msgspec", "inferd inferd_kernels"),
    "inferd": rule("zmq msgspec psutil structlog prometheus_client", DAEMON),
}
TORCH_IN_ENGINE = {
    "assembly",
    "build",
    "kvcache",
    "local",
    "offline",
    "ranks",
    "capture",
    "ceilings",
    "cuda_graphs",
    "cuda_staging",
    "cuda_tokens",
    "device",
    "profile",
    "runner",
    "sampler",
    "worker",
    "workspace",
}
"""The engine modules that compute; every other one runs without torch."""

FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing", "joblib"}
FORBIDDEN_CALLS = {
    "torch.load",
    "pickle.loads",
    "eval",
    "exec",
    "send_pyobj",
    "recv_pyobj",
    "broadcast_object_list",
    "all_gather_object",
    "send_object_list",
    "recv_object_list",
    "gather_object",
    "scatter_object_list",
}

EXCEPTIONS = {"inferd.plugin.conformance.ranks": "multiprocessing"}
"""The conformance kit runs checks of its own in ranks; nothing of the daemon does."""


class Import(NamedTuple):
    module: str
    line: int
    typing_only: bool


def sources() -> list[Path]:
    return [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    """Yield every import of a file, those inside functions included."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body
        for inner in ast.walk(child)
    }
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree):
        typing_only = id(node) in guarded
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            # `from package import module` counts as the module where one of that name exists
            yield from (Import(_member(base, alias.name), node.lineno, typing_only) for alias in node.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _member(base: str, name: str) -> str:
    relative = Path(*base.split("."), name)
    exists = any((ROOT / f / relative).with_suffix(".py").exists() or (ROOT / f / relative).is_dir() for f in FOLDERS)
    return f"{base}.{name}" if exists else base


def rule_for(module: str) -> tuple[str, Rule]:
    prefix = max((p for p in RULES if within(module, p)), key=len)
    found = RULES[prefix]
    if prefix == "inferd.engine" and module.split(".")[2:3] and module.split(".")[2] in TORCH_IN_ENGINE:
        found = found._replace(third_party=found.third_party | {"torch"})
    return prefix, found


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def allowed(module: str, imported: Import) -> bool:
    prefix, found = rule_for(module)
    top = imported.module.split(".")[0]
    if top in FIRST_PARTY:
        return within(imported.module, prefix) or any(within(imported.module, p) for p in found.first_party)
    if top in sys.stdlib_module_names or top == "__future__":
        return True
    return top in found.third_party or (imported.typing_only and top in found.typing_only)


def test_every_import_follows_the_table() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{i.line} imports {i.module}"
        for path in sources()
        for i in imports_of(path)
        if not allowed(module_of(path), i)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_daemon_never_imports_a_concrete_plugin() -> None:
    users = {
        module_of(path)
        for path in sources()
        for i in imports_of(path)
        if within(i.module, "inferd_plugins") and not within(module_of(path), "inferd_plugins")
    }
    assert not users


@pytest.mark.parametrize(
    ("module", "imported", "verdict"),
    [
        ("inferd_client.core", "torch", False),
        ("inferd_client.core", "inferd.link", False),
        ("inferd.front.main", "torch", False),
        ("inferd.front.main", "inferd_client.core", False),
        ("inferd.front.main", "inferd_client.protocol.codes", True),
        ("inferd.engine.scheduler", "torch", False),
        ("inferd.engine.runner", "torch", True),
        ("inferd.engine.sampler.masks", "torch", True),
        ("inferd.engine.scheduler", "inferd_plugins.kv.paged", False),
        ("inferd_plugins.kv.paged", "torch", False),
        ("inferd_plugins.attention.torch", "inferd.engine.batch", False),
        ("inferd.cli.commands.run", "inferd_client", True),
        ("inferd.cli.commands.run", "torch", False),
    ],
)
def test_the_table_says_what_it_should(module: str, imported: str, verdict: bool) -> None:
    assert allowed(module, Import(imported, 1, typing_only=False)) is verdict


def test_nothing_that_runs_code_from_data_is_used() -> None:
    wrong = []
    for path in sources():
        forbidden = FORBIDDEN_MODULES - {EXCEPTIONS.get(module_of(path))}
        wrong += [f"{path}:{i.line} {i.module}" for i in imports_of(path) if i.module.split(".")[0] in forbidden]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and forbidden_call(ast.unparse(node.func)):
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node.func)}")
    assert not wrong, "\n".join(wrong)


def forbidden_call(name: str) -> bool:
    return name in FORBIDDEN_CALLS or ("." in name and name.rpartition(".")[2] in FORBIDDEN_CALLS - {"eval", "exec"})


def test_the_scan_sees_what_it_should() -> None:
    assert all(map(forbidden_call, ["torch.load", "eval", "socket.recv_pyobj", "dist.broadcast_object_list"]))
    assert not any(map(forbidden_call, ["model.eval", "json.load", "tomllib.loads", "re.compile"]))


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after `code`."""
    script = f"{code}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=110)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", ["inferd_client", "inferd.config", "inferd_tui.plain", "inferd_client.testing"])
def test_light_imports_stay_light(module: str) -> None:
    assert not loaded_by(f"import {module}") & {"torch", "numpy", "transformers", "tokenizers", "textual"}


COMMANDS = [
    "serve",
    "run",
    "chat",
    "ps",
    "ls",
    "show",
    "pull",
    "rm",
    "load",
    "status",
    "top",
    "metrics",
    "gateway",
    "stop",
    "bench",
    "traffic",
    "plugins",
    "config",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    code = f"from inferd.cli.main import run; assert run(['{command}', '--help']) == 0"
    assert not loaded_by(code) & {"torch", "numpy", "transformers", "tokenizers", "textual", "rich"}


def test_help_is_quick() -> None:
    """The best of several runs in processor time, as other work on the machine only ever adds."""
    times = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "inferd.cli.main", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3
