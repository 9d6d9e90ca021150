#!/bin/sh
# What a machine with a GPU is asked: the kernels' GPU tests, then the GPU bench; the exit code is the worse of both.
#
#   bench/gpu.sh [FOLDER]     FOLDER: wheels of peers (see bench/gpu_peers.py) to install beside what is there
#
# Results go to $OUT, else to bench/results; MINUTES bounds the bench (6.5), TEST_SECONDS the tests (120).
cd "$(dirname "$0")/.." || exit 2
out=${OUT:-bench/results}
site=$(mktemp -d) || exit 2
trap 'rm -rf "$site"' EXIT
if [ -n "${1:-}" ] && ls "$1"/*.whl > "$site/found" 2>&1; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$1"/*.whl ||
        echo "wheels not installed: their peers will be missing"
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

workers=$(python3 -c 'import xdist; print("-n 8")' 2> "$site/no-xdist")
timeout "${TEST_SECONDS:-120}" python3 -m pytest -q -m gpu -W default --continue-on-collection-errors -p no:cacheprovider \
    $workers tests/kernels > "$out/gpu_tests.log" 2>&1
tests=$?

python3 -m bench.gpu_attention --minutes "${MINUTES:-6.5}" --json "$out/gpu_attention.json"
bench=$?

echo "GPU tests, exit code $tests:"
tail -n 12 "$out/gpu_tests.log"
[ "$tests" -gt "$bench" ] && exit "$tests"
exit "$bench"
