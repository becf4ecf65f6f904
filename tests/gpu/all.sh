#!/usr/bin/env bash
# All that needs GPUs, from programs built elsewhere: all.sh RESULTS [PART=SECONDS ...], on a machine that may have no Rust.
# Parts, in this order, each ended after its seconds; without any, all of them in the seconds given here:
#   numbered=150   the benchmark's cases with numbers to reach
#   tests=240      the CUDA backend against the host backend; a test that hangs or crashes is left out, and the rest goes on
#   sanitizers=240 the small tests under compute-sanitizer, a quarter of the time for each tool
#   uneven=120     ranks without tokens, all tokens to one rank, and numbers of ranks that are no power of two
#   sweeps=240     the benchmark against tokens, SMs, stages, and ways to synchronise
# Results go to RESULTS, what each part says to RESULTS/logs. One closing line for each part, and one for all.
# PROGRAMS (target) is where gpu-bench, gpu-tests and gpu-tests-plain are, STALL (60) after how many seconds without an answer
# a test hangs, BENCH_OPTIONS and TEST_FILTER what else the programs are told.
set -u
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
results=$1 programs=${PROGRAMS:-target} logs=$1/logs
shift
[ $# -gt 0 ] || set -- numbered=150 tests=240 sanitizers=240 uneven=120 sweeps=240
mkdir -p "$logs"
export CUDA_DEVICE_MAX_CONNECTIONS=32 DEEPEP_GPU_TESTS_REQUIRED=1

# Ends itself a little before it would be ended.
bench() { # seconds, options ...
    local limit=$1
    timeout -k 5 "$limit" "$programs/gpu-bench" cuda --results "$results" --budget $((limit > 30 ? limit - 10 : limit * 2 / 3)) \
        ${BENCH_OPTIONS:-} "${@:2}"
}

numbered() { bench "$1" --groups throughput,latency; }
sweeps() { bench "$1" --groups sync,tokens,stages,sms; }

# What a prediction of BENCHMARKS.md is about.
readonly PREDICTED=dispatch_fp8_t8192_by_rank_sm64,combine_bf16_t8192_by_rank_sm64,ll_dispatch_cast_t128_by_rank,ll_combine_t128_by_rank
uneven() {
    local end=$((SECONDS + $1)) code=0 devices ranks others=()
    devices=$("$programs/gpu-bench" cuda --devices)
    for ranks in 3 5 6 7; do [ "$ranks" -ge "$devices" ] || others+=("$ranks"); done
    bench $(($1 / (1 + ${#others[@]}))) --groups uneven || code=1
    for ranks in ${others[@]+"${others[@]}"}; do
        [ $((end - SECONDS)) -gt 5 ] || { echo "no time left for $ranks ranks"; return 1; }
        bench $((end - SECONDS)) --ranks "$ranks" --groups throughput,latency,uneven --cases "$PREDICTED" || code=1
    done
    return $code
}

# Runs the tests that are named on standard input into $part, until they end, one of them hangs, or the time is over. Whether
# the program came to its end: what it says is no sign of that, since tests start it again and show what it says then.
some_tests() { # seconds
    local left=$1 quiet=0 size=-1 now names code
    mapfile -t names
    setsid "$programs/gpu-tests" --test-threads=1 --exact "${names[@]}" >"$part" 2>&1 &
    running=$!
    while kill -0 $running 2>/dev/null; do
        sleep 1
        now=$(stat -c %s "$part")
        [ "$now" = "$size" ] && quiet=$((quiet + 1)) || quiet=0
        size=$now left=$((left - 1))
        [ $left -gt 0 ] && [ $quiet -lt "${STALL:-60}" ] || end_running
    done
    wait $running 2>/dev/null
    code=$?
    running=
    [ $code = 0 ] || [ $code = 101 ] # all passed, or some failed
}

# With the processes that it has started.
end_running() { [ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null; }
running=
trap end_running EXIT

tests() { # seconds
    local end=$((SECONDS + $1)) part=$logs/tests.part left passed=0 failed='' ended='' culprit finished
    left=$("$programs/gpu-tests" --list --format terse | sed -n 's/: test$//p' | grep -F -- "${TEST_FILTER:-}")
    while [ -n "$left" ] && [ $((end - SECONDS)) -gt 0 ]; do
        some_tests $((end - SECONDS)) <<<"$left" && finished=1 || finished=0
        cat "$part"
        echo
        passed=$((passed + $(grep -c '^test .* \.\.\. ok$' "$part")))
        failed+=$(sed -n 's/^test \(.*\) \.\.\. FAILED.*/ \1/p' "$part")
        # What has begun and not ended is the last, and why the program did not come to its closing line.
        culprit=$(sed -n 's/^test \([^ ]*\) \.\.\. *$/\1/p; s/^test \([^ ]*\) \.\.\. .*/\1/p' "$part" | tail -n 1)
        [ $finished = 1 ] && culprit=
        left=$(grep -vxF -f <(sed -n 's/^test \([^ ]*\) \.\.\..*/\1/p' "$part") <<<"$left")
        [ -n "$culprit" ] || break
        ended+=" $culprit"
    done
    # Why tests failed is said at the end only, to which a program that was ended did not come.
    [ -z "$ended" ] || [ -z "$failed" ] || { some_tests $((end - SECONDS)) < <(xargs -n1 <<<"$failed"); cat "$part"; }
    rm -f "$part"
    left=$(wc -w <<<"$left")
    echo "tests: $passed passed, $(wc -w <<<"$failed") failed${failed:+:}$failed, $(wc -w <<<"$ended") ended early${ended:+:}$ended, $left not run"
    [ "$passed" -gt 0 ] && [ -z "$failed$ended" ] && [ "$left" = 0 ]
}

sanitizers() {
    LIMIT=$(($1 / 4)) OUT=$logs tests/gpu/sanitizers.sh "$programs/gpu-tests" "$programs/gpu-tests-plain"
}

count=0 bad=''
for part in "$@"; do
    name=${part%%=*} seconds=${part#*=} start=$SECONDS
    case $name in
    numbered | tests | sanitizers | uneven | sweeps) ;;
    *) echo "no part is called $name" >&2; exit 2 ;;
    esac
    count=$((count + 1))
    log=$logs/$name.log
    if "$name" "$seconds" >"$log" 2>&1; then verdict=passed; else verdict=FAILED bad+=" $name"; fi
    said=$(grep -E '^(tests: |[0-9]+ cases: |[a-z]+check: )' "$log" | tail -n 5 | paste -sd '|' | sed 's/|/; /g')
    echo "$name: $verdict, $((SECONDS - start)) s: ${said:-$(tail -n 1 "$log")}"
done
echo "all: $((count - $(wc -w <<<"$bad"))) of $count parts passed${bad:+, FAILED:}$bad"
[ -z "$bad" ]
