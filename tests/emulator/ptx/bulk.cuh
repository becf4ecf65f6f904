// Bulk copies and mbarriers: see ../bulk.cpp.
#pragma once
#include "base.cuh"

namespace ep::ptx {

inline uint64_t *word(u64 *barrier) { return reinterpret_cast<uint64_t *>(barrier); }

inline void barrier_init(u64 *barrier, u32 arrivals) { emulator::mbarrier_init(word(barrier), arrivals); }
inline void fence_barrier_init() {}
inline void barrier_expect(u64 *barrier, u32 bytes) { emulator::mbarrier_expect(word(barrier), bytes); }

inline bool barrier_try_wait(u64 *barrier, u32 parity) {
    if (emulator::mbarrier_has_passed(word(barrier), parity)) return true;
    yield();
    return false;
}

inline void bulk_load(void *shared, const void *global, u32 bytes, u64 *barrier) {
    emulator::bulk_load(shared, global, bytes, word(barrier));
}

inline void bulk_store(void *global, const void *shared, u32 bytes) { emulator::bulk_store(global, shared, bytes); }
inline void bulk_commit() { emulator::bulk_commit(); }
template <int N> inline void bulk_wait_read() { emulator::bulk_wait(N, emulator::Bulk::READ); }
template <int N> inline void bulk_wait() { emulator::bulk_wait(N, emulator::Bulk::COMPLETE); }

} // namespace ep::ptx
