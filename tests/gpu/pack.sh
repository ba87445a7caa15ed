#!/usr/bin/env bash
# Gather what a GPU machine without network or compiler lacks, in folders that can be carried there one after the
# other, none with the tree over 64 MiB:
#   tests/gpu/pack.sh          (PYTHON=... for another interpreter than .venv's, LIMIT_MIB=... for another bound)
# tests/gpu/packed/first: cp312 wheels of our dependencies (torch, triton and numpy are there), the CPU library as built
# here, and as much of the default model as fits; tests/gpu/packed/second: the rest of the model.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
limit=$((${LIMIT_MIB:-64} << 20))
margin=$((4 << 20))
packed=tests/gpu/packed
packages="msgspec pluggy pyzmq psutil structlog tokenizers jinja2 markupsafe llguidance platformdirs tomlkit click rich
  markdown-it-py mdurl pygments nvidia-ml-py prometheus_client safetensors gguf tqdm pyyaml requests"
rm -rf "$packed"
mkdir -p "$packed/first/wheels" "$packed/second"
platforms=any
for minor in 5 12 17 24 27 28 31 34; do platforms+=" manylinux_2_${minor}_x86_64"; done
for name in 1 2010 2014; do platforms+=" manylinux${name}_x86_64"; done
# shellcheck disable=SC2046,SC2086  # one word a platform, one a package
"$python" -m pip download -qq --no-deps --only-binary :all: --python-version 3.12 --implementation cp \
  --abi cp312 --abi abi3 --abi none $(printf -- '--platform %s ' $platforms) \
  -c constraints.txt -d "$packed/first/wheels" $packages

library=kernels/inferd_kernels/cpu/libinferd_cpu.so
"$python" kernels/inferd_kernels/cpu/build.py --if-stale || echo "no compiler here: the CPU library may be old" >&2
if [ -e "$library" ]; then cp "$library" "$packed/first/"; else echo "the CPU library is not packed" >&2; fi

bytes_of() { du -cb "$@" | tail -n 1 | cut -f 1; }
tree=$(git ls-files -z --cached --others --exclude-standard | du -cb --files0-from=- | tail -n 1 | cut -f 1)
model=$("$python" -m tests.gpu.model_file || true)
if [ -n "$model" ]; then
  room=$((limit - margin - tree - $(bytes_of "$packed/first")))
  head -c "$room" "$model" > "$packed/first/model.part"
  tail -c "+$((room + 1))" "$model" > "$packed/second/model.part"
  sha256sum < "$model" | cut -d ' ' -f 1 > "$packed/first/model.sha256"
  cp "$packed/first/model.sha256" "$packed/second/"
  basename "$model" > "$packed/first/model.name"
else
  echo "the default model is not here (inferd pull smollm2-135m): part real will have nothing to run" >&2
fi

status=0
for folder in first second; do
  size=$(($(bytes_of "$packed/$folder") + tree))
  echo "$folder: $((size >> 10)) KiB with the tree of $((tree >> 10)) KiB"
  [ "$size" -le "$limit" ] || { echo "$folder is over the limit of $((limit >> 20)) MiB" >&2; status=1; }
done
echo "total carried: $(($(bytes_of "$packed") >> 10)) KiB"
exit $status
