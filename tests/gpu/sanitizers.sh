#!/bin/bash
# The small cases of the GPU tests under compute-sanitizer: sanitizers.sh TESTS PLAIN, on a machine with the CUDA toolkit.
# TESTS is the test program; PLAIN the same with plain stores in place of bulk stores (NVCC_APPEND_FLAGS=-DEP_PLAIN_STORES),
# for initcheck, which does not know what bulk stores write and would call every row uninitialised. A failing tool, or a
# case that is wrong under it, is a failure.
set -u
tests=$1 plain=$2 failed=0
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
[ -n "$sanitizer" ] || { echo "there is no compute-sanitizer here" >&2; exit 2; }
export DEEPEP_GPU_TESTS_REQUIRED=1 CUDA_DEVICE_MAX_CONNECTIONS=32 DEEPEP_GPU_TESTS_PATIENCE=8
check() { # tool, program, options ...
    local log start=$SECONDS
    log=$(mktemp)
    timeout "${LIMIT:-120}" "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "${@:3}" \
        "$2" --test-threads=1 small_ >"$log" 2>&1
    local code=$?
    echo "$1: $([ $code = 0 ] && echo clean || echo "FAILED ($code)"), $((SECONDS - start)) s"
    [ $code = 0 ] || { failed=1; tail -n 60 "$log"; }
    [ -z "${OUT:-}" ] || cp "$log" "$OUT/$1.txt"
    rm -f "$log"
}
check memcheck "$tests"
check racecheck "$tests"
check synccheck "$tests"
# Copies to the host are of outputs that the tests compare byte by byte, padding between rows included.
check initcheck "$plain" --check-api-memory-access no
exit $failed
