#!/usr/bin/env bash
# Everything a GPU machine has to show, in one call of at most a quarter of an hour:
#   tests/gpu/run.sh [-o OUT] [PART...]     parts: env ceilings correctness engine attention gemm model (default: all)
# Needs Python 3.12 with torch and triton; what else is missing comes from tests/gpu/wheels (see pack.sh), without a
# network. Each part has a time limit and a process of its own, so none can spoil another. Results: OUT/results.json
# and OUT/results.md.
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-gpu-out}
while getopts "o:" option; do
  case $option in
    o) out=$OPTARG ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
mkdir -p "$out"
limits="env:60 ceilings:90 correctness:260 engine:150 attention:150 gemm:120 model:240"
python=${PYTHON:-python3}
export PYTHONPATH="$PWD:$PWD/clients:$PWD/kernels:$PWD/daemon:$PWD/plugins:$PWD/tui:$out/site${PYTHONPATH:+:$PYTHONPATH}"
export TRITON_CACHE_DIR="$out/triton"
if [ -d tests/gpu/wheels ] && [ ! -d "$out/site" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$out/site" tests/gpu/wheels/*.whl
fi
status=0
for limit in $limits; do
  part=${limit%%:*}
  if [ $# -gt 0 ] && [[ " $* " != *" $part "* ]]; then continue; fi
  echo "== $part"
  timeout --kill-after=10 "${limit##*:}" "$python" -m tests.gpu.main "$part" --out "$out" >"$out/$part.log" 2>&1
  code=$?
  tail -n 3 "$out/$part.log"
  [ $code -eq 0 ] || { echo "$part ended with $code"; status=1; }
done
rm -rf "$out/triton" "$out/site"
"$python" -m tests.gpu.main report --out "$out"
exit $status
