#!/bin/bash
# The small cases of the GPU tests under compute-sanitizer: sanitizers.sh TESTS PLAIN, on a machine with the CUDA toolkit.
# TESTS is the test program; PLAIN the same with plain stores in place of bulk stores (NVCC_APPEND_FLAGS=-DEP_PLAIN_STORES),
# for initcheck, which does not know what bulk stores write and would call every row uninitialised. A failing tool, or a
# case that is wrong under it, is a failure. Each rank of a case is a process under the tool, which orders the work of a
# process as it likes, and so cannot hold up one rank for another.
# TOOLS: which tools; LIMIT (120): seconds for each of them, EACH (40): for a case.
set -u
tests=$1 plain=$2 failed=0
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
[ -n "$sanitizer" ] || { echo "there is no compute-sanitizer here" >&2; exit 2; }
export DEEPEP_GPU_TESTS_REQUIRED=1 CUDA_DEVICE_MAX_CONNECTIONS=32 DEEPEP_GPU_TESTS_PATIENCE=8
export DEEPEP_CUDA_SHARING=fd # where others are tried first and not to be had, memcheck counts the refusal as an error

cases=$("$tests" --list --format terse | sed -n 's/: test$//p' | grep '^small_')
[ -n "$cases" ] || { echo "there are no small cases in $tests" >&2; exit 2; }

check() { # tool, program, options ...
    local tool=$1 program=$2 log start=$SECONDS clean=0 bad='' left=0 case code
    shift 2
    log=$(mktemp)
    for case in $cases; do
        [ $((SECONDS - start)) -lt "${LIMIT:-120}" ] || { left=$((left + 1)); continue; }
        DEEPEP_GPU_TESTS_UNDER="$sanitizer --tool $tool --error-exitcode 9 --print-limit 20 $*" \
            timeout "${EACH:-40}" "$program" --test-threads=1 --exact "$case" >"$log" 2>&1
        code=$?
        [ $code = 0 ] && clean=$((clean + 1)) && continue
        bad+=" $case ($code)"
        tail -n 30 "$log"
        [ -z "${OUT:-}" ] || cp "$log" "$OUT/$tool.$case.txt"
    done
    rm -f "$log"
    echo "$tool: $clean clean${bad:+, FAILED:$bad}, $left not run, $((SECONDS - start)) s"
    [ -z "$bad" ] && [ $left = 0 ] || failed=1
}

for tool in ${TOOLS:-memcheck racecheck synccheck initcheck}; do
    case $tool in
    # Copies to the host are of outputs that the tests compare byte by byte, padding between rows included.
    initcheck) check "$tool" "$plain" --check-api-memory-access no ;;
    *) check "$tool" "$tests" ;;
    esac
done
exit $failed
