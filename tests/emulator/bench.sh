#!/usr/bin/env bash
# The CUDA benchmark on the emulated device: bench.sh PROGRAM LIBRARY. Its times mean nothing here, but that it comes to its
# end does: with cases of every kind, with three ranks of which one has no tokens, and with ranks that hang in one case. Ranks
# are threads where there is one device, otherwise processes.
set -eu
program=$1 running=
export LD_LIBRARY_PATH=$(dirname "$2")
start=$SECONDS
results=$(mktemp -d)
trap '[ -z "$running" ] || kill $running 2>/dev/null; rm -rf "$results"' EXIT

# In the background, as $running; end waits for it.
begin() {
    timeout 280 "$program" cuda --quick --results "$results" "$@" >"$results/log" 2>&1 &
    running=$!
}
end() {
    local code=0
    wait $running || code=$?
    running=
    return $code
}
bench() { begin "$@" && end; }
wrong() {
    cat "$results/log" >&2
    echo "benchmark on the emulated device: $1" >&2
    exit 1
}

kinds=dispatch_fp8_t8192_by_rank_unbalanced15,combine_bf16_t8192_by_expert_sm64,ll_pair_t1_by_rank,memory,sync_pair_t1_by_rank_ack_late20
bench --case-seconds 240 --cases $kinds || wrong "a case failed"
grep -q '^5 cases: 0 failed, 0 not begun' "$results/log" || wrong "another number of cases"
for name in throughput latency sweeps; do
    [ -s "$results/${name}_quick_1xdevice_shared.json" ] || wrong "no results of $name"
done

EMULATOR_GPUS=3 bench --case-seconds 240 --ranks 3 --groups uneven --cases ll_ || wrong "a case with uneven ranks failed"
grep -q '^4 cases: 0 failed' "$results/log" || wrong "another number of uneven cases"

# The ranks stop for good after the first case: the second is given up, the third has new ranks.
begin --case-seconds 15 --groups latency --cases _t1_
until grep -q '^ll_dispatch_cast_t1_by_rank ' "$results/log"; do
    kill -0 $running 2>/dev/null || wrong "the run ended before its ranks could be stopped"
    sleep 0.1
done
for worker in $(pgrep -P "$(pgrep -P $running)"); do kill -STOP "$worker"; done # of the benchmark, of timeout
! end || wrong "ranks that hang are no failure"
grep -q '^ll_pair_t1_by_expert .*gave no answer in 15s' "$results/log" || wrong "no word of ranks that hang"
grep -Eq '^ll_pair_t1_by_rank +[0-9.]+ ' "$results/log" || wrong "nothing was measured after ranks that hung"
grep -q '"ll_pair_t1_by_expert"' "$results/not_measured_quick_1xdevice_shared.json" || wrong "what failed is in no file"
echo "benchmark on the emulated device: passed in $((SECONDS - start)) s"
