#!/usr/bin/env bash
# Everything a GPU machine has to show, in calls of under ten minutes:
#   tests/gpu/run.sh [-o OUT] [-w WORK] [-c] [PART...]     all parts unless some are named, in this order:
#     env ceilings correctness engine attention gemm       (a first call, at most 490 seconds)
#     model real monitor                                   (a second one, at most 290)
#   -c runs what can run on a CPU, in Triton's interpreter at toy sizes: a rehearsal, whose times mean nothing.
# Needs Python 3.12 with torch and triton; what else is missing comes from tests/gpu/packed (see pack.sh), without a
# network. Each part has a time limit and processes of its own, so none can spoil another. OUT gets results.json,
# results.md and log.txt, new after every part; WORK keeps what a second call on the same machine takes up.
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-gpu-out} work=${TMPDIR:-/tmp}/inferd-gpu device=cuda slower=1
while getopts "o:w:c" option; do
  case $option in
    o) out=$OPTARG ;;
    w) work=$OPTARG ;;
    c) device=cpu slower=3 ;;
    *) sed -n '2,10p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
limits="env:30 ceilings:35 correctness:200 engine:75 attention:85 gemm:65 model:155 real:65 monitor:70"
for part in "$@"; do
  [[ " $limits" == *" $part:"* ]] || { echo "no part $part; known: $limits" >&2; exit 2; }
done
python=${PYTHON:-python3} packed=tests/gpu/packed
mkdir -p "$out" "$work"
site=$work/site
export PYTHONPATH="$PWD:$PWD/clients:$PWD/kernels:$PWD/daemon:$PWD/plugins:$PWD/tui:$site${PYTHONPATH:+:$PYTHONPATH}"
export TRITON_CACHE_DIR="$work/triton" PYTHONUNBUFFERED=1
if [ $device = cpu ]; then export TRITON_INTERPRET=1; fi
# Libraries of gigabytes come from a cold disk once, in the time of no part.
if [ $device = cuda ]; then timeout 60 "$python" -c "import torch, triton; torch.cuda.init()" & fi
if [ -d "$packed/first/wheels" ] && [ ! -e "$site/.wheels" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$packed"/first/wheels/*.whl &&
    touch "$site/.wheels"
fi
# Run from its sources, the distribution says its version nowhere else.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
mkdir -p "$site/inferd-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: inferd\nVersion: %s\n' "$version" >"$site/inferd-$version.dist-info/METADATA"
library=kernels/inferd_kernels/cpu/libinferd_cpu.so
if [ ! -e $library ] && [ -e "$packed/first/libinferd_cpu.so" ]; then cp "$packed/first/libinferd_cpu.so" $library; fi
wait
status=0
for limit in $limits; do
  part=${limit%%:*}
  if [ $# -gt 0 ] && [[ " $* " != *" $part "* ]]; then continue; fi
  echo "== $part"
  rm -f "$work/$part.json"
  timeout --kill-after=5 $((${limit##*:} * slower)) \
    "$python" -m tests.gpu.main "$part" --device $device --work "$work" >"$work/$part.log" 2>&1
  code=$?
  tail -n 1 "$work/$part.log" | cut -c 1-1000
  [ $code -eq 0 ] || { echo "$part ended with $code"; status=1; }
  { echo "== $part: $code"; tail -c 200000 "$work/$part.log"; } >>"$work/log.txt"
  cp "$work/log.txt" "$out/log.txt"
  "$python" -m tests.gpu.report gather "$work" "$out"
done
cat "$out/results.md"
exit $status
