#!/usr/bin/env bash
# Runs the GPU tests on the emulated device: test.sh PROGRAM LIBRARY, as many at a time as there are processors. Without more
# it runs a selection; with DEEPEP_EMULATED=all every test, with DEEPEP_EMULATED=TEXT those with the text in their names.
# EMULATOR_SEED is the order in which things happen (1); the small cases are also run with others.
set -eu
program=$1 library=$2 which=${DEEPEP_EMULATED:-selection}
here=$(cd "$(dirname "$0")" && pwd)
start=$SECONDS
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

all=$("$program" --list --format terse | sed -n 's/: test$//p')
case $which in
all) tests=$all ;;
selection) # what is not too slow for every run
    tests=$(grep -vxFf <(grep -v '^#' "$here/slow.txt") <<<"$all")
    export DEEPEP_GPU_STRESS=${DEEPEP_GPU_STRESS:-2}
    ;;
*) tests=$(grep -F -- "$which" <<<"$all") || { echo "no GPU test is called $which" >&2; exit 2; } ;;
esac
seed=${EMULATOR_SEED:-1}
runs=$(
    sed "s/^/$seed /" <<<"$tests"
    for other in $((seed + 1)) $((seed + 2)); do sed -n "s/^small_/$other &/p" <<<"$tests"; done
)

export LD_LIBRARY_PATH=$(dirname "$library") DEEPEP_GPU_TESTS_REQUIRED=1 DEEPEP_GPU_TESTS_PATIENCE=20 program logs
run_one() { # seed, test
    local log=$logs/$2.seed_$1
    EMULATOR_SEED=$1 timeout 300 "$program" --test-threads=1 --exact "$2" >"$log" 2>&1 && rm "$log"
}
export -f run_one
xargs -P "$(nproc)" -L1 bash -c 'run_one "$@" || true' _ <<<"$runs"

failed=$(ls "$logs")
for name in $failed; do
    echo "--- $name"
    tail -n 60 "$logs/$name"
done
count=$(wc -l <<<"$runs")
if [ -n "$failed" ]; then
    echo "emulated device: $(wc -w <<<"$failed") of $count runs failed:" $failed >&2
    exit 1
fi
echo "emulated device: $count runs of $(wc -w <<<"$tests") tests passed in $((SECONDS - start)) s ($which, of $(wc -w <<<"$all") tests)"
