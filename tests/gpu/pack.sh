#!/usr/bin/env bash
# Gather what a GPU machine without network or compiler lacks: cp312 wheels of our dependencies (torch, triton and
# numpy are there), into tests/gpu/wheels, and the CPU library as built here; print the total size.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
target=tests/gpu/wheels
packages="msgspec pluggy pyzmq psutil structlog tokenizers safetensors huggingface_hub jinja2 markupsafe regex llguidance
  platformdirs tomlkit click rich nvidia-ml-py prometheus_client filelock packaging tqdm pyyaml typing_extensions gguf"
mkdir -p "$target"
for package in $packages; do
  "$python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --implementation cp --abi cp312 \
    --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform any -c constraints.txt -d "$target" "$package"
done
"$python" kernels/inferd_kernels/cpu/build.py --if-stale || echo "no compiler here: the CPU library is not packed" >&2
du -ch "$target" kernels/inferd_kernels/cpu/*.so | tail -n 1
