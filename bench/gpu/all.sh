#!/bin/sh
# Runs every GPU test and bench (see bench/gpu/all.py) on a machine with a GPU, bare but for torch; the exit code is that of the run.
#
#   bench/gpu/all.sh [FOLDER] [ARGUMENTS]     FOLDER: wheels to install in addition, relative to where this is called
#
# Results go to $OUT, otherwise to bench/results.
wheels=
case "${1:-}" in
    '' | -*) ;;
    *) wheels=$(CDPATH='' cd -- "$1" && pwd) || { echo "$1: no such folder of wheels" >&2; exit 2; }; shift ;;
esac
cd "$(dirname "$0")/../.." || exit 2
site=$(mktemp -d) || exit 2
trap 'rm -rf "$site"' EXIT
if [ -n "$wheels" ]; then
    if ! ls "$wheels"/*.whl > "$site/found" 2>&1; then
        echo "no wheels in $wheels"
    elif ! python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl; then
        echo "wheels not installed: their peers will be missing"
    fi
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python3 -m bench.gpu.all "$@"
