// What a kernel can ask of the emulated device: between cuda.h and ptx/, which the kernels are compiled with, and the
// device itself. A kernel's image finds these in libcuda.so.1.
#pragma once
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
namespace emulator {

struct Index {
    unsigned x, y, z;
};

// Of the thread that runs.
extern Index thread_index, block_index, block_size, grid_size;

// An entry of an image.
struct Kernel {
    void (*body)(const void *parameters);
    size_t parameter_bytes;
    unsigned max_threads; // __launch_bounds__
};

enum class Collective : unsigned char { SYNC, SHUFFLE, SHUFFLE_UP, SHUFFLE_XOR, VOTE, MATCH, MIN, MAX, SUM };

// Lets other threads run: always, or now and then.
void yield();
void perhaps_yield();
// Until the kernel before this one on its stream has ended; and that the next may begin ahead of this one's end.
void await_kernel_before();
void let_next_kernel_come();
// The device's clock.
uint64_t nanoseconds();

// The values of all lanes of the warp; they hold until this thread's next collective.
const uint64_t *collect(Collective what, unsigned mask, uint64_t value);
// Of the whole block; whether any thread voted for it.
bool block_barrier(bool vote, bool has_vote);
void named_barrier(unsigned number, unsigned threads);

// Shared memory of this thread's block, filled with garbage at the start.
void *dynamic_shared();
void *static_shared(size_t bytes);

// Copies that complete later, in any order.
void bulk_load(void *shared, const void *global, unsigned bytes, uint64_t *barrier);
void bulk_store(void *global, const void *shared, unsigned bytes);
void bulk_commit();
enum class Bulk { READ, COMPLETE };
// Until at most `groups` of this thread's newest groups are less than that.
void bulk_wait(unsigned groups, Bulk how);

void mbarrier_init(uint64_t *barrier, unsigned arrivals);
void mbarrier_expect(uint64_t *barrier, unsigned bytes);
bool mbarrier_has_passed(uint64_t *barrier, unsigned parity);

// Whether this thread's device may use the memory at all, or at gpu scope.
void check_system(const void *memory, size_t bytes);
void check_gpu(const void *memory, size_t bytes);

// The kernel did what no kernel may do: says who and where, and ends the program.
[[noreturn]] void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace emulator
#pragma GCC visibility pop
