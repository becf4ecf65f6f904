#!/usr/bin/env bash
# Plants errors in copies of the kernels, one at a time, and sees that a small case fails as it must:
# mutations.sh PROGRAM LIBRARY
set -eu
program=$1 library=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$(dirname "$library") DEEPEP_GPU_TESTS_REQUIRED=1 EMULATOR_GPUS=2 EMULATOR_IMAGES=$work/images
planted=0 missed=0

plant() { # what, what is said about it, image, file, sed expression, case (small_rank)
    planted=$((planted + 1))
    rm -rf "$work/kernels" "$work/images"
    cp -r "$here/../../kernels" "$work/kernels"
    mkdir "$work/images"
    sed -E -i "$5" "$work/kernels/$4"
    if cmp -s "$work/kernels/$4" "$here/../../kernels/$4"; then
        echo "mutation: $1: nothing in kernels/$4 looks like what it changes" >&2
        missed=$((missed + 1))
        return
    fi
    "$here/nvcc" -o "$work/images/$3" "$work/kernels/entry/$3.cu"
    local seed
    for seed in {1..30}; do # one order of things in three shows the rarest
        EMULATOR_SEED=$seed timeout 120 "$program" --test-threads=1 --exact "${6:-small_rank}" >"$work/log" 2>&1 && continue
        grep -qE "$2" "$work/log" && return
    done
    echo "mutation: $1: not found" >&2
    tail -n 30 "$work/log" >&2
    missed=$((missed + 1))
}

plant "rows are signalled when they have been read" "host \[.*CUDA \[" dispatch_by_rank impl/ring.cuh 's/bulk_wait<([01])>/bulk_wait_read<\1>/'
plant "rows are not waited for" "has been read|host \[.*CUDA \[" dispatch_by_rank impl/ring.cuh 's/ptx::bulk_wait<[01]>\(\);//'
plant "a barrier is left out" "host \[.*CUDA \[" dispatch_by_rank impl/routing.cuh '/s\.begin == s\.end\) meanwhile/{n;s/__syncthreads\(\);//}'
plant "sums do not wait for their rows" "before a bulk load|host \\[.*CUDA \\[" combine_by_rank impl/sum_ring.cuh 's/wait_load\(.*//'
plant "a stage is loaded while it is read" "second arrival|host \\[.*CUDA \\[" combine_by_rank impl/sum_ring.cuh 's/free\(r\.count\)/free(r.count + 1)/'
plant "a signal is not sent" "TIMEOUT" combine_by_rank impl/combine_body.cuh 's/signal_peers\(p\.comm, DATA.*;$//'
plant "a signal to a peer is of gpu scope" "of gpu scope by device" combine_by_rank comm/signal.cuh 's/store_release_sys\(signal_word\(c, peer, phase/store_release_gpu(signal_word(c, peer, phase/'
plant "one lane is not at a collective" "lane.* at" dispatch_by_rank impl/ring.cuh 's/__syncwarp\(\);/if (lane_id() != 5) __syncwarp();/'
plant "one warp is not at a barrier" "barrier|no thread can go on" dispatch_by_rank impl/exchange.cuh 's/^    __syncthreads\(\);/    if (warp_id() != 1) __syncthreads();/'
plant "rows are stored at odd addresses" "is not aligned" dispatch_by_rank impl/send_rows.cuh 's/bulk_store\(target \+/bulk_store(target + 4 +/'
plant "a ring is larger than shared memory" "beyond memory|not of shared memory" dispatch_by_rank impl/ring.cuh 's/return stages/return stages + 300000/'
plant "a kernel does not wait for the one before" "host \\[.*CUDA \\[|CONCURRENT_USE" slotted_dispatch_by_rank entry/kernel.cuh 's/ptx::await_kernel_before\(\);/(void)0;/' graph_slots_rank

echo "emulated device: $((planted - missed)) of $planted planted errors found"
[ $missed = 0 ]
