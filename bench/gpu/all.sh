#!/bin/sh
# Runs the kernels' GPU tests, then the GPU benches, on a machine with a GPU; the exit code is the worst of them.
#
#   bench/gpu/all.sh [FOLDER]     FOLDER: wheels of peers (see bench/gpu/peers.py) to install in addition
#
# Results go to $OUT, otherwise to bench/results. It ends within 9 minutes: TEST_SECONDS bounds the tests (110), MODEL_MINUTES
# the bench of whole steps (3), MINUTES that of attention (3.5).
cd "$(dirname "$0")/../.." || exit 2
out=${OUT:-bench/results}
site=$(mktemp -d) || exit 2
trap 'rm -rf "$site"' EXIT
if [ -n "${1:-}" ] && ls "$1"/*.whl > "$site/found" 2>&1; then
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$1"/*.whl ||
        echo "wheels not installed: their peers will be missing"
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

workers=$(python3 -c 'import xdist; print("-n 8")' 2> "$site/no-xdist")
timeout "${TEST_SECONDS:-110}" python3 -m pytest -q -m gpu -W default --continue-on-collection-errors -p no:cacheprovider \
    $workers tests/kernels > "$out/gpu_tests.log" 2>&1
tests=$?

python3 -m bench.gpu.model --minutes "${MODEL_MINUTES:-3}" --json "$out/gpu_model.json"
model=$?
python3 -m bench.gpu.attention --minutes "${MINUTES:-3.5}" --json "$out/gpu_attention.json"
attention=$?

echo "GPU tests, exit code $tests:"
tail -n 12 "$out/gpu_tests.log"
printf '%s\n' "$tests" "$model" "$attention" | sort -n | { while read -r code; do worst=$code; done; exit "$worst"; }
