#!/usr/bin/env bash
# Runs the GPU tests on the emulated device: test.sh PROGRAM LIBRARY, as many at a time as there are processors. Without more
# it runs a selection; with DEEPEP_EMULATED=all every test, with DEEPEP_EMULATED=TEXT those with the text in their names.
# EMULATOR_SEED is the order in which things happen (1).
set -eu
program=$1 library=$2 which=${DEEPEP_EMULATED:-selection}
here=$(cd "$(dirname "$0")" && pwd)
start=$SECONDS
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Too slow for every run, by name.
slow=$(grep -v '^#' "$here/slow.txt" | paste -sd'|')
all=$("$program" --list --format terse | sed -n 's/: test$//p')
case $which in
all) tests=$all ;;
selection) tests=$(grep -vxE "$slow" <<<"$all") ;;
*) tests=$(grep -F -- "$which" <<<"$all") || { echo "no GPU test is called $which" >&2; exit 2; } ;;
esac

export LD_LIBRARY_PATH=$(dirname "$library") DEEPEP_GPU_TESTS_REQUIRED=1 DEEPEP_GPU_TESTS_PATIENCE=20 program logs
run_one() {
    timeout "${EMULATOR_TIMEOUT:-300}" "$program" --test-threads=1 --exact "$1" >"$logs/$1" 2>&1 && rm "$logs/$1"
}
export -f run_one
xargs -P "$(nproc)" -I{} bash -c 'run_one {} || true' <<<"$tests"

failed=$(ls "$logs")
for name in $failed; do
    echo "--- $name"
    tail -n 60 "$logs/$name"
done
count=$(wc -w <<<"$tests")
if [ -n "$failed" ]; then
    echo "emulated device: $(wc -w <<<"$failed") of $count tests failed:" $failed >&2
    exit 1
fi
echo "emulated device: $count tests passed in $((SECONDS - start)) s ($which of $(wc -w <<<"$all"))"
