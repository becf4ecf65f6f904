// Signs that ranks do not run the same operations in the same order.
#pragma once
#include "operation.cuh"

namespace ep {

// What a rank that gives up leaves in the verdict words of the others: the epoch, its operation, why.
__device__ __forceinline__ u64 verdict_value(const CommParams &c, const OperationState &op) { return op.epoch << 16 | (c.fingerprint >> 12) << 12 | op.status; }
__device__ __forceinline__ u32 verdict_status(u64 verdict) { return (u32)verdict & 0xfff; }
__device__ __forceinline__ bool is_verdict_of_another(const CommParams &c, u64 verdict, u64 epoch) {
    return verdict >> 16 == epoch && ((u32)verdict >> 12 & 0xf) != c.fingerprint >> 12;
}

// Of a word that has reached `epoch` in its turn: whether it is a signal of something else. An operation that is a round of
// turns ahead, or more, has overtaken the signal that was awaited.
__device__ __forceinline__ bool is_another(const CommParams &c, u64 word, u64 epoch) {
    u64 seen = word >> 16;
    return seen == epoch ? (word & 0xffff) != c.fingerprint : seen < epoch + c.turns;
}

// A word by which `peer` shows that it runs, or has run, something else in place of operation `epoch`, or 0. That may only
// mean that it is ahead: then the signal that `phase` waits for is there too.
EP_SELDOM u64 other_operation(const CommParams &c, u32 peer, u32 phase, u64 epoch) {
    if (phase == READ || peer == c.rank) return 0;
    for (u32 other = ENTER; other <= DATA; other++)
        for (u32 turn = 0; turn < c.turns; turn++) {
            u64 word = ptx::load_acquire_sys(signal_word(c, c.rank, other, peer, turn)), seen = word >> 16;
            bool differs = seen == epoch && (word & 0xffff) != c.fingerprint, skipped = seen >= epoch && other > phase;
            if (seen > epoch || differs || skipped) return word;
        }
    return 0;
}

} // namespace ep
