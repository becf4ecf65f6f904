// The wrapper itself: errors carry status and text, owners move, a second close is harmless, objects may go in any
// order, and each method reaches the function it names.

#include "deep_ep.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

#define EXPECT(condition)                                                                                      \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                       \
            std::exit(1);                                                                                      \
        }                                                                                                      \
    } while (0)

/// Runs `call`, which must throw an Error of this status whose text has `part` in it.
template <class Call>
void expect_error(deep_ep_status_t status, const char *part, Call call) {
    try {
        call();
    } catch (const deepep::Error &error) {
        if (error.status() == status && std::strstr(error.what(), part) != nullptr &&
            std::strcmp(error.status_name(), deep_ep_status_string(status)) == 0)
            return;
        std::fprintf(stderr, "expected status %d with \"%s\", got %d: %s\n", status, part, error.status(), error.what());
        std::exit(1);
    }
    std::fprintf(stderr, "expected status %d with \"%s\", got success\n", status, part);
    std::exit(1);
}

deepep::BufferConfig small_config() {
    deepep::BufferConfig config;
    config.max_tokens = 2;
    config.max_row_bytes = 32;
    config.num_experts = 4;
    config.num_topk = 1;
    return config;
}

template <class T>
constexpr bool move_only = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                           !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(move_only<deepep::Comm> && move_only<deepep::Buffer> && move_only<deepep::Handle>);
static_assert(sizeof(deepep::DispatchIn) == sizeof(deep_ep_dispatch_in_t), "a wrapped struct adds nothing");

void structs_begin_with_their_defaults() {
    EXPECT(deepep::CommConfig().struct_size == sizeof(deep_ep_comm_config_t));
    EXPECT(deepep::CommConfig().num_ranks == 1);
    EXPECT(deepep::BufferConfig().struct_size == sizeof(deep_ep_buffer_config_t));
    EXPECT(deepep::DispatchOut().x.data == nullptr);
    EXPECT(deepep::CombineIn().struct_size == sizeof(deep_ep_combine_in_t));
}

void errors_carry_status_and_text() {
    expect_error(DEEP_EP_INVALID_ARGUMENT, "num_ranks", [] { (void)deepep::Comm::local(0); });
    expect_error(DEEP_EP_INVALID_ARGUMENT, "deep_ep_unique_id_create", [] { (void)deepep::unique_id("nonsense"); });
    const auto comms = deepep::Comm::local(1);
    auto config = small_config();
    config.max_row_bytes = 8;
    expect_error(DEEP_EP_INVALID_ARGUMENT, "max_row_bytes", [&] { deepep::Buffer buffer(comms[0], config); });
    config = small_config();
    config.struct_size = 3;
    expect_error(DEEP_EP_ABI_MISMATCH, "struct_size", [&] { deepep::Buffer buffer(comms[0], config); });
    deepep::Buffer buffer(comms[0], small_config());
    deepep::Handle handle(buffer);
    expect_error(DEEP_EP_INVALID_STATE, "", [&] { (void)handle.combine_input(DEEP_EP_BF16); });
    expect_error(DEEP_EP_INVALID_STATE, "", [&] { (void)handle.wait_counts(); });
    expect_error(DEEP_EP_INVALID_STATE, "", [&] { (void)buffer.trace(); });
    expect_error(DEEP_EP_INVALID_ARGUMENT, "timeout_ms", [&] { buffer.set_timeout(0); });
    expect_error(DEEP_EP_INVALID_ARGUMENT, "", [&] { (void)buffer.peer_statistics(1); });
    deepep::Handle closed;
    expect_error(DEEP_EP_INVALID_ARGUMENT, "handle", [&] { closed.release(); });
}

void owners_move_and_close_once() {
    auto comms = deepep::Comm::local(1);
    deepep::Comm comm = std::move(comms[0]);
    EXPECT(!comms[0] && comm);
    deepep::Buffer first(comm, small_config());
    deep_ep_buffer_t *raw = first.get();
    deepep::Buffer second(std::move(first));
    EXPECT(first.get() == nullptr && second.get() == raw);
    second = deepep::Buffer(comm, small_config()); // the old one is destroyed
    deepep::Buffer &alias = second;
    raw = second.get();
    second = std::move(alias); // to itself: nothing happens
    EXPECT(second.get() == raw);
    comm.close();
    comm.close();
    EXPECT(!comm);
    deepep::Handle handle(second); // the buffer outlives its comm
    second.barrier();
    second.close();
    second.close();
    handle.close(); // and may go before its handles
    handle.close();
    deepep::Buffer empty;
    empty.close();

    auto others = deepep::Comm::local(1);
    deep_ep_comm_t *detached = others[0].detach();
    EXPECT(!others[0] && detached != nullptr);
    deepep::Comm adopted(detached);
    EXPECT(adopted.get() == detached);
}

/// Runs one function per rank, each on its own thread.
void on_threads(int ranks, const std::function<void(int)> &body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back(body, rank);
    for (std::thread &thread : threads)
        thread.join();
}

void a_group_meets_by_unique_id() {
    const deep_ep_unique_id_t id = deepep::unique_id();
    on_threads(2, [&](int rank) {
        deepep::CommConfig who;
        who.rank = rank;
        who.num_ranks = 2;
        who.unique_id = id;
        deepep::Comm comm(who);
        EXPECT(comm.rank() == rank && comm.num_ranks() == 2 && comm.backend() == DEEP_EP_BACKEND_HOST);
        const std::int32_t owners[4] = {1, 0, 1, 1};
        auto config = small_config();
        config.flags = DEEP_EP_BUFFER_TRACE;
        EXPECT(deepep::Buffer::size(comm, config, owners).total_device > 0);
        deepep::Buffer buffer(comm, config, owners);
        EXPECT(buffer.local_experts() == (rank == 0 ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{0, 2, 3}));

        // Token t of rank r goes to expert 1 + t: one to rank 0, one to rank 1.
        alignas(16) float x[2][8] = {{1.0f + static_cast<float>(rank)}, {3.0f + static_cast<float>(rank)}};
        alignas(16) float y[2][8] = {};
        const std::int32_t ids[2] = {1, 2};
        deepep::Handle handle(buffer);
        deepep::DispatchIn in;
        in.num_tokens = 2;
        in.hidden = 8;
        in.x = deepep::rows(x, 2, 8, DEEP_EP_FP32);
        in.topk_idx = ids;
        in.topk_idx_dtype = DEEP_EP_INT32;
        deepep::DispatchOut out;
        handle.dispatch_send(in);
        handle.dispatch_recv(out);
        EXPECT(handle.wait_counts() == 2);
        EXPECT(deepep::row<float>(out.x, 0)[0] == (rank == 0 ? 1.0f : 3.0f));
        EXPECT(deepep::row<float>(out.x, 1)[0] == (rank == 0 ? 2.0f : 4.0f));
        deepep::CombineIn back;
        back.x = out.x;
        deepep::CombineOut sums;
        sums.x = deepep::rows(y, 2, 8, DEEP_EP_FP32);
        handle.combine_send(back);
        handle.combine_recv(sums);
        EXPECT(std::memcmp(x, y, sizeof x) == 0);

        handle.dispatch(in, out);
        handle.release();
        buffer.set_timeout(20000);
        EXPECT(buffer.report().status == DEEP_EP_SUCCESS && buffer.report().missing.empty());
        EXPECT(buffer.statistics().dispatches == 2 && buffer.statistics().combines == 1);
        EXPECT(buffer.peer_statistics(1 - rank).rows_received == 3); // two dispatches and a combine
        EXPECT(buffer.expert_statistics() == (rank == 0 ? std::vector<std::uint64_t>{4} : std::vector<std::uint64_t>{0, 4, 0}));
        EXPECT(buffer.alive(2) == (std::vector<std::uint8_t>{1, 1}));
        const std::string trace = buffer.trace();
        EXPECT(!trace.empty() && trace.find('\0') == std::string::npos);
        buffer.reset();
        buffer.barrier();
    });
}

void a_lost_rank_is_an_error_and_a_report() {
    const auto comms = deepep::Comm::local(2);
    auto config = small_config();
    config.timeout_ms = 50;
    config.first_timeout_ms = 50;
    auto buffers = deepep::Buffer::local(comms, config);
    expect_error(DEEP_EP_TIMEOUT, "1", [&] { buffers[0].barrier(); });
    const deepep::Report report = buffers[0].report();
    EXPECT(report.status == DEEP_EP_TIMEOUT && report.first_missing == 1);
    EXPECT(report.missing == std::vector<std::int32_t>{1});
}

void an_abort_reaches_the_others() {
    const auto comms = deepep::Comm::local(2);
    auto buffers = deepep::Buffer::local(comms, small_config());
    on_threads(2, [&](int rank) {
        if (rank == 1)
            comms[1].abort("out of tokens");
        else
            expect_error(DEEP_EP_ABORTED, "out of tokens", [&] { buffers[0].barrier(); });
    });
}

void different_configurations_are_refused() {
    const deep_ep_unique_id_t id = deepep::unique_id();
    on_threads(2, [&](int rank) {
        deepep::CommConfig who;
        who.rank = rank;
        who.num_ranks = 2;
        who.unique_id = id;
        deepep::Comm comm(who);
        auto config = small_config();
        config.max_tokens = 2 + rank;
        expect_error(DEEP_EP_CONFIG_MISMATCH, "max_tokens", [&] { deepep::Buffer buffer(comm, config); });
    });
}

void rows_are_found_by_their_strides() {
    alignas(16) std::uint16_t memory[2 * 3 * 8] = {};
    deep_ep_rows_t rows = deepep::rows(memory, 3, 8, DEEP_EP_BF16);
    EXPECT(rows.row_stride == 16 && rows.rows == 3 && rows.data == memory);
    EXPECT(deepep::row<std::uint16_t>(rows, 2) == memory + 16);
    EXPECT(deepep::row<std::uint16_t>(rows, 1, 1) == memory + 32);
    rows.slot_stride = 64;
    EXPECT(deepep::row<std::uint16_t>(rows, 0, 1) == memory + 32);
    EXPECT(deepep::dtype_size(DEEP_EP_FP32) == 4 && deepep::dtype_size(DEEP_EP_DTYPE_NONE) == 0);
}

} // namespace

int main() {
    structs_begin_with_their_defaults();
    errors_carry_status_and_text();
    owners_move_and_close_once();
    a_group_meets_by_unique_id();
    a_lost_rank_is_an_error_and_a_report();
    an_abort_reaches_the_others();
    different_configurations_are_refused();
    rows_are_found_by_their_strides();
    std::puts("the wrapper does what it says");
    return 0;
}
