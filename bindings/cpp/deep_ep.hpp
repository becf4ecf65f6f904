/// \file deep_ep.hpp
/// C++17 wrapper of deep_ep.h: owners that give their objects back, and exceptions instead of statuses. It adds
/// nothing else: what a call means, on which ranks it must come and when its memory may be read is written at the C
/// function of the same name. Needs no CUDA header: a stream is the value of a CUstream or cudaStream_t.

#ifndef DEEP_EP_HPP
#define DEEP_EP_HPP

#include "deep_ep.h"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace deepep {

/// A failed call: its status, and in what() the sentence of deep_ep_last_error.
class Error : public std::runtime_error {
public:
    Error(deep_ep_status_t status, const char *text) : std::runtime_error(text), status_(status) {}

    [[nodiscard]] deep_ep_status_t status() const noexcept { return status_; }
    /// The name of the status.
    [[nodiscard]] const char *status_name() const noexcept { return deep_ep_status_string(status_); }

private:
    deep_ep_status_t status_;
};

/// Throws an Error unless `status` is success.
inline void check(deep_ep_status_t status) {
    if (status != DEEP_EP_SUCCESS)
        throw Error(status, deep_ep_last_error());
}

/// A struct of the C header that begins with its defaults. Its fields are those of the C struct.
template <class C, deep_ep_status_t (*Init)(C *, std::size_t)>
struct Initialized : C {
    Initialized() { check(Init(this, sizeof(C))); }
};

using CommConfig = Initialized<deep_ep_comm_config_t, deep_ep_comm_config_init>;
using BufferConfig = Initialized<deep_ep_buffer_config_t, deep_ep_buffer_config_init>;
using BufferSizes = Initialized<deep_ep_buffer_sizes_t, deep_ep_buffer_sizes_init>;
using DispatchIn = Initialized<deep_ep_dispatch_in_t, deep_ep_dispatch_in_init>;
using DispatchOut = Initialized<deep_ep_dispatch_out_t, deep_ep_dispatch_out_init>;
using CombineIn = Initialized<deep_ep_combine_in_t, deep_ep_combine_in_init>;
using CombineOut = Initialized<deep_ep_combine_out_t, deep_ep_combine_out_init>;
using Statistics = Initialized<deep_ep_statistics_t, deep_ep_statistics_init>;
using PeerStatistics = Initialized<deep_ep_peer_statistics_t, deep_ep_peer_statistics_init>;

/// What a buffer had to report, with all the ranks that were missing.
struct Report : Initialized<deep_ep_report_t, deep_ep_report_init> {
    std::vector<std::int32_t> missing;
};

/// Draws the id that the ranks of one group meet by. Its bytes may be copied to the other ranks by any means.
[[nodiscard]] inline deep_ep_unique_id_t unique_id(const char *address = nullptr) {
    deep_ep_unique_id_t id;
    check(deep_ep_unique_id_create(address, &id));
    return id;
}

/// Bytes of one element; 0 for a number that is no type.
[[nodiscard]] constexpr std::int64_t dtype_size(std::uint32_t dtype) noexcept {
    switch (dtype) {
    case DEEP_EP_FP8_E4M3:
    case DEEP_EP_OPAQUE: return 1;
    case DEEP_EP_BF16:
    case DEEP_EP_FP16: return 2;
    case DEEP_EP_FP32:
    case DEEP_EP_INT32: return 4;
    case DEEP_EP_INT64: return 8;
    default: return 0;
    }
}

/// `count` rows of `hidden` elements at `data`, without gaps. Rows that are only read may be const.
[[nodiscard]] inline deep_ep_rows_t rows(const void *data, std::int64_t count, std::int64_t hidden,
                                         std::uint32_t dtype) noexcept {
    deep_ep_rows_t rows = {};
    rows.data = const_cast<void *>(data);
    rows.rows = count;
    rows.row_stride = hidden * dtype_size(dtype);
    rows.dtype = dtype;
    return rows;
}

/// Row `index` of `rows`; in slotted layouts of slab `slot`. The strides must be filled in, as rows() and the library
/// do.
template <class T>
[[nodiscard]] T *row(const deep_ep_rows_t &rows, std::int64_t index, std::int64_t slot = 0) noexcept {
    const std::int64_t slab = rows.slot_stride != 0 ? rows.slot_stride : rows.rows * rows.row_stride;
    return reinterpret_cast<T *>(static_cast<unsigned char *>(rows.data) + slot * slab + index * rows.row_stride);
}

/// Owns one object of the library: move-only, gives it back when it goes.
template <class T, deep_ep_status_t (*Destroy)(T *)>
class Owner {
public:
    Owner() noexcept = default;
    explicit Owner(T *object) noexcept : object_(object) {}
    Owner(Owner &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Owner &operator=(Owner &&other) noexcept {
        if (this != &other) {
            static_cast<void>(Destroy(object_));
            object_ = std::exchange(other.object_, nullptr);
        }
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() { static_cast<void>(Destroy(object_)); }

    /// The C object; null after a close, a move or a detach.
    [[nodiscard]] T *get() const noexcept { return object_; }
    [[nodiscard]] explicit operator bool() const noexcept { return object_ != nullptr; }
    /// Gives the object out of hand without destroying it.
    [[nodiscard]] T *detach() noexcept { return std::exchange(object_, nullptr); }
    /// Destroys the object now; does nothing when there is none. After an Error the object is still there.
    void close() {
        check(Destroy(object_));
        object_ = nullptr;
    }

private:
    T *object_ = nullptr;
};

/// One rank's membership of a group.
class Comm : public Owner<deep_ep_comm_t, deep_ep_comm_destroy> {
public:
    using Owner::Owner;

    /// Joins a group as one rank; waits for the others.
    explicit Comm(const deep_ep_comm_config_t &config) : Owner(join(config)) {}

    /// All ranks of a group of this process, in rank order.
    [[nodiscard]] static std::vector<Comm> local(const deep_ep_comm_config_t &config,
                                                 const std::int32_t *devices = nullptr) {
        std::vector<deep_ep_comm_t *> raw(config.num_ranks > 0 ? static_cast<std::size_t>(config.num_ranks) : 1);
        std::vector<Comm> comms(raw.size());
        check(deep_ep_comm_create_local(&config, devices, raw.data()));
        for (std::size_t rank = 0; rank < raw.size(); ++rank)
            comms[rank] = Comm(raw[rank]);
        return comms;
    }

    /// The same with nothing to choose but the number of ranks.
    [[nodiscard]] static std::vector<Comm> local(std::int32_t num_ranks) {
        CommConfig config;
        config.num_ranks = num_ranks;
        return local(config);
    }

    [[nodiscard]] std::int32_t rank() const { return info().rank; }
    [[nodiscard]] std::int32_t num_ranks() const { return info().num_ranks; }
    /// The backend it works with: never DEEP_EP_BACKEND_AUTO.
    [[nodiscard]] std::uint32_t backend() const { return info().backend; }

    /// Ends the group's work on every rank. May be called beside anything else.
    void abort(const char *reason = nullptr) const { check(deep_ep_comm_abort(get(), reason)); }

private:
    struct Info {
        std::int32_t rank, num_ranks;
        std::uint32_t backend;
    };

    [[nodiscard]] Info info() const {
        Info info = {};
        check(deep_ep_comm_info(get(), &info.rank, &info.num_ranks, &info.backend));
        return info;
    }

    static deep_ep_comm_t *join(const deep_ep_comm_config_t &config) {
        deep_ep_comm_t *comm = nullptr;
        check(deep_ep_comm_create(&config, &comm));
        return comm;
    }
};

/// Symmetric memory for the operations of one rank. May outlive its Comm.
class Buffer : public Owner<deep_ep_buffer_t, deep_ep_buffer_destroy> {
public:
    using Owner::Owner;

    /// Collective; waits for the other ranks. `expert_rank`: null for an even split, or the rank of each expert.
    Buffer(const Comm &comm, const deep_ep_buffer_config_t &config, const std::int32_t *expert_rank = nullptr)
        : Owner(create(comm, config, expert_rank)) {}

    /// The buffers of all ranks of one Comm::local, in rank order.
    [[nodiscard]] static std::vector<Buffer> local(const std::vector<Comm> &comms,
                                                   const deep_ep_buffer_config_t &config,
                                                   const std::int32_t *expert_rank = nullptr) {
        std::vector<deep_ep_comm_t *> members;
        for (const Comm &comm : comms)
            members.push_back(comm.get());
        std::vector<deep_ep_buffer_t *> raw(comms.size());
        std::vector<Buffer> buffers(comms.size());
        check(deep_ep_buffer_create_local(members.data(), &config, expert_rank, raw.data()));
        for (std::size_t rank = 0; rank < raw.size(); ++rank)
            buffers[rank] = Buffer(raw[rank]);
        return buffers;
    }

    /// The exact bytes a buffer would take.
    [[nodiscard]] static BufferSizes size(const Comm &comm, const deep_ep_buffer_config_t &config,
                                          const std::int32_t *expert_rank = nullptr) {
        BufferSizes sizes;
        check(deep_ep_buffer_size(comm.get(), &config, expert_rank, &sizes));
        return sizes;
    }

    void barrier(deep_ep_stream_t stream = nullptr) { check(deep_ep_buffer_barrier(get(), stream)); }

    /// The oldest thing to report; status DEEP_EP_SUCCESS when there is nothing.
    [[nodiscard]] Report report() const {
        Report report;
        check(deep_ep_buffer_report(get(), &report, nullptr, 0));
        if (report.num_missing > 0) { // such a report stays until reset, so it can be read again
            report.missing.resize(static_cast<std::size_t>(report.num_missing));
            check(deep_ep_buffer_report(get(), &report, report.missing.data(), report.missing.size()));
        }
        return report;
    }

    void set_timeout(std::uint32_t timeout_ms) const { check(deep_ep_buffer_set_timeout(get(), timeout_ms)); }

    /// Ends a failure together with the ranks that go on. `alive`: null for all, or one byte for each rank.
    void reset(const std::uint8_t *alive = nullptr) { check(deep_ep_buffer_reset(get(), alive)); }

    /// Global ids of this rank's experts; position is the local id.
    [[nodiscard]] std::vector<std::int32_t> local_experts() const {
        std::size_t count = 0;
        check(deep_ep_buffer_local_experts(get(), nullptr, 0, &count));
        std::vector<std::int32_t> experts(count);
        check(deep_ep_buffer_local_experts(get(), experts.data(), experts.size(), &count));
        return experts;
    }

    /// 1 for every rank that takes part, 0 for those that a reset left out.
    [[nodiscard]] std::vector<std::uint8_t> alive(std::size_t num_ranks) const {
        std::vector<std::uint8_t> alive(num_ranks);
        check(deep_ep_buffer_alive(get(), alive.data(), alive.size()));
        return alive;
    }

    [[nodiscard]] Statistics statistics() const {
        Statistics statistics;
        check(deep_ep_buffer_statistics(get(), &statistics));
        return statistics;
    }

    [[nodiscard]] PeerStatistics peer_statistics(std::int32_t peer) const {
        PeerStatistics statistics;
        check(deep_ep_buffer_peer_statistics(get(), peer, &statistics));
        return statistics;
    }

    /// Rows each local expert has received since create.
    [[nodiscard]] std::vector<std::uint64_t> expert_statistics() const {
        std::size_t count = 0;
        check(deep_ep_buffer_local_experts(get(), nullptr, 0, &count));
        std::vector<std::uint64_t> rows(count);
        check(deep_ep_buffer_expert_statistics(get(), rows.data(), rows.size()));
        return rows;
    }

    /// The recorded phases as a Chrome trace.
    [[nodiscard]] std::string trace() const {
        std::size_t needed = 0;
        check(deep_ep_buffer_trace(get(), nullptr, 0, &needed));
        std::string json(needed, '\0');
        check(deep_ep_buffer_trace(get(), json.data(), json.size(), &needed));
        json.resize(needed - 1); // without the terminator
        return json;
    }

private:
    static deep_ep_buffer_t *create(const Comm &comm, const deep_ep_buffer_config_t &config,
                                    const std::int32_t *expert_rank) {
        deep_ep_buffer_t *buffer = nullptr;
        check(deep_ep_buffer_create(comm.get(), &config, expert_rank, &buffer));
        return buffer;
    }
};

/// The routing of one dispatch. Destroying it while its received rows are open is a release, which has its place in
/// the order of calls on all ranks: let it go at the same point everywhere.
class Handle : public Owner<deep_ep_handle_t, deep_ep_handle_destroy> {
public:
    using Owner::Owner;

    explicit Handle(Buffer &buffer) : Owner(create(buffer)) {}

    void dispatch(const deep_ep_dispatch_in_t &in, deep_ep_dispatch_out_t &out, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_dispatch(get(), &in, &out, stream));
    }
    void dispatch_send(const deep_ep_dispatch_in_t &in, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_dispatch_send(get(), &in, stream));
    }
    void dispatch_recv(deep_ep_dispatch_out_t &out, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_dispatch_recv(get(), &out, stream));
    }

    /// Waits until the host knows the numbers of the last dispatch and returns the rows present (PACKED_BY_EXPERT: the
    /// end of the last expert). `expert_counts`: null, or room for one number for each local expert.
    std::int64_t wait_counts(std::int64_t *expert_counts = nullptr, std::uint32_t timeout_ms = 0) {
        std::int64_t rows = 0;
        check(deep_ep_handle_wait_counts(get(), expert_counts, &rows, timeout_ms));
        return rows;
    }

    /// Where the rows of the next combine may be written in place: BF16, FP16 or FP32.
    [[nodiscard]] deep_ep_rows_t combine_input(std::uint32_t dtype, deep_ep_stream_t stream = nullptr) {
        deep_ep_rows_t x = {};
        x.dtype = dtype;
        check(deep_ep_handle_combine_input(get(), &x, stream));
        return x;
    }

    void combine(const deep_ep_combine_in_t &in, const deep_ep_combine_out_t &out, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_combine(get(), &in, &out, stream));
    }
    void combine_send(const deep_ep_combine_in_t &in, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_combine_send(get(), &in, stream));
    }
    void combine_recv(const deep_ep_combine_out_t &out, deep_ep_stream_t stream = nullptr) {
        check(deep_ep_handle_combine_recv(get(), &out, stream));
    }

    /// Says that the received rows are no longer read, without a combine.
    void release(deep_ep_stream_t stream = nullptr) { check(deep_ep_handle_release(get(), stream)); }

private:
    static deep_ep_handle_t *create(Buffer &buffer) {
        deep_ep_handle_t *handle = nullptr;
        check(deep_ep_handle_create(buffer.get(), &handle));
        return handle;
    }
};

} // namespace deepep

#endif // DEEP_EP_HPP
