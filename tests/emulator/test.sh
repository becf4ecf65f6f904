#!/usr/bin/env bash
# Runs the GPU tests on the emulated device: test.sh PROGRAM LIBRARY, as many at a time as there are processors. Without more
# it runs a selection; with DEEPEP_EMULATED=all every test, with DEEPEP_EMULATED=TEXT those with the text in their names.
# EMULATOR_SEED is the order in which things happen (1), EMULATOR_GPUS the number of devices (2), which have EMULATOR_SMS
# multiprocessors together (8). The small cases are also run in other orders, on one device.
set -eu
program=$1 library=$2 which=${DEEPEP_EMULATED:-selection}
here=$(cd "$(dirname "$0")" && pwd)
start=$SECONDS
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

listed() { sed -n "s/^$1 //p" "$here/tests.txt"; }
all=$("$program" --list --format terse | sed -n 's/: test$//p' | grep -vxEf <(listed gpu))
case $which in
all) tests=$all ;;
selection) # what is not too slow for every run
    tests=$(grep -vxEf <(listed slow) <<<"$all")
    export DEEPEP_GPU_STRESS=${DEEPEP_GPU_STRESS:-1} DEEPEP_GPU_SHAPES=${DEEPEP_GPU_SHAPES:-6}
    ;;
*) tests=$(grep -F -- "$which" <<<"$all") || { echo "no GPU test is called $which" >&2; exit 2; } ;;
esac
seed=${EMULATOR_SEED:-1} gpus=${EMULATOR_GPUS:-2}
runs=$(
    sort -r <<<"$tests" | sed "s/^/$seed $gpus /" # random operations take the longest
    for other in $((seed + 1)) $((seed + 2)); do sed -n "s/^small_/$other 1 &/p" <<<"$tests"; done
)

export LD_LIBRARY_PATH=$(dirname "$library") DEEPEP_GPU_TESTS_REQUIRED=1 DEEPEP_GPU_TESTS_PATIENCE=20 program logs
export wide=$(listed wide)
run_one() { # seed, devices, test
    local log=$logs/$3.seed_$1 sms=${EMULATOR_SMS:-8}
    ! grep -qxEf <(echo "$wide") <<<"$3" || sms=132
    EMULATOR_SEED=$1 EMULATOR_GPUS=$2 EMULATOR_SMS=$((sms / $2)) timeout 600 "$program" --test-threads=1 --exact "$3" >"$log" 2>&1 && rm "$log"
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
