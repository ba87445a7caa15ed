"""What an application sees that installs no more than it needs: pyzmq and msgspec, and pytest for its tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tomllib
import venv
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = ("pyzmq", "msgspec")
FOR_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
OURS = ("clients/inferd_client", "daemon/inferd")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def isolated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Python in a fresh environment that has links to those packages alone."""
    folder = tmp_path_factory.mktemp("app")
    venv.create(folder / "env", symlinks=True, with_pip=False)
    python = folder / "env" / "bin" / "python"
    site = folder / "env" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for source in [*(path for name in BASE + FOR_PYTEST for path in top_level(name)), *(ROOT / name for name in OURS)]:
        (site / source.name).symlink_to(source)
    describe_distribution(site)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), *arguments], cwd=folder, env={"PATH": ""}, capture_output=True, text=True, timeout=60
        )

    return run


def top_level(distribution: str) -> set[Path]:
    """Return the folders and modules that a distribution has in site-packages."""
    found = files(distribution) or []
    names = {file.parts[0] for file in found if file.parts[0] not in ("..", "__pycache__")}
    base = Path(str(found[0].locate())).parents[len(found[0].parts) - 1]
    return {base / name for name in names}


def describe_distribution(site: Path) -> None:
    """Write what an installation writes: the name, and the entry point by which pytest finds the fixture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = site / f"inferd-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: inferd\nVersion: {project['version']}\n")
    points = "".join(f"{name} = {target}\n" for name, target in project["entry-points"]["pytest11"].items())
    (info / "entry_points.txt").write_text(f"[pytest11]\n{points}")


def test_the_environment_is_really_isolated(isolated):
    for name in ("torch", "numpy", "tokenizers", "textual", "click"):
        assert isolated("-c", f"import {name}").returncode != 0


def test_the_client_imports_nothing_heavy(isolated):
    program = """
        import sys
        import inferd_client, inferd_client.testing
        [getattr(inferd_client, name) for name in inferd_client.__all__]
        third_party = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names
        ours = [name for name in third_party if "zmq" not in name and "cython" not in name]
        print(sorted(name for name in ours if not name.startswith("_")))
    """
    run = isolated("-c", textwrap.dedent(program))
    assert run.stdout.strip() == "['inferd_client', 'msgspec']", run.stderr


def test_the_fixture_works_for_an_applications_tests(isolated, tmp_path):
    tests = tmp_path / "test_app.py"
    tests.write_text(
        textwrap.dedent(
            """
            import asyncio
            import pytest
            from inferd_client import AsyncClient, Client, EngineLost

            def ask(runtime):
                with Client(runtime) as client:
                    return client.chat("hi").text

            @pytest.mark.fake_inferd(reply="42", faults=[{"match": "boom", "kind": "die", "after": 1}])
            def test_app(fake_inferd):
                assert ask(fake_inferd.runtime) == "42"
                with pytest.raises(EngineLost):
                    fake_inferd.client().generate("boom")
                fake_inferd.script(reply="43")
                assert ask(fake_inferd.runtime) == "43"
                first = fake_inferd.kill_worker()
                fake_inferd.wait_ready()
                assert fake_inferd.client().status().models[0].pid != first

            def test_async(fake_inferd):
                async def main():
                    async with AsyncClient(fake_inferd.runtime) as client:
                        return (await client.generate("echo")).text
                assert asyncio.run(main()) == "echo"
            """
        )
    )
    run = isolated("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_pytest_starts_without_importing_the_client(isolated, tmp_path):
    """The plugin is loaded in every pytest run of an environment that has inferd: it must cost nothing."""
    (tmp_path / "test_nothing.py").write_text(
        "import sys\ndef test_it():\n    assert 'zmq' not in sys.modules\n    assert 'msgspec' not in sys.modules\n"
    )
    run = isolated("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))
    assert "1 passed" in run.stdout, run.stdout
