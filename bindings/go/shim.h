/* Between Go and deep_ep.h.
 *
 * The library's last error belongs to a thread, and a goroutine may be on another thread after a call. So every call
 * that can fail goes through a wrapper that takes the text before it returns to Go.
 *
 * Structs with pointers into Go memory are put together here, on the C stack: Go passes such pointers as plain
 * arguments, which holds the memory in place for the call, and never inside a struct. Addresses of other memory
 * (devices) come as numbers. For each pointer at most one of the two is set.
 */
#ifndef DEEPEP_GO_SHIM_H
#define DEEPEP_GO_SHIM_H

#include <deep_ep.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t status;
    char *text; /* null on success, else to be freed */
} deepep_go_outcome;

static inline deepep_go_outcome deepep_go_done(deep_ep_status_t status)
{
    deepep_go_outcome outcome = {status, NULL};
    if (status != DEEP_EP_SUCCESS) {
        outcome.text = strdup(deep_ep_last_error());
    }
    return outcome;
}

static inline void *deepep_go_at(const void *memory, uintptr_t address)
{
    return memory ? (void *)memory : (void *)address;
}

/* Where rows begin that are none: not null, which would mean "in place". */
static inline uintptr_t deepep_go_nowhere(void)
{
    static char nowhere[16] __attribute__((aligned(16)));
    return (uintptr_t)nowhere;
}

/* Comm */

extern int32_t deepepGoAllgather(uintptr_t context, void *mine, void *all, size_t bytes_per_rank);

static inline int32_t deepep_go_allgather(void *context, const void *mine, void *all, size_t bytes_per_rank)
{
    return deepepGoAllgather((uintptr_t)context, (void *)mine, all, bytes_per_rank);
}

static inline deepep_go_outcome deepep_go_unique_id_create(const char *address, deep_ep_unique_id_t *out)
{
    return deepep_go_done(deep_ep_unique_id_create(address, out));
}

static inline deepep_go_outcome deepep_go_comm_config_init(deep_ep_comm_config_t *config)
{
    return deepep_go_done(deep_ep_comm_config_init(config, sizeof *config));
}

/* gather: 0, or the cgo handle of the all-gather. */
static inline deepep_go_outcome deepep_go_comm_create(const deep_ep_comm_config_t *given, uintptr_t gather,
                                                      deep_ep_comm_t **out)
{
    deep_ep_comm_config_t config = *given;
    if (gather) {
        config.allgather = deepep_go_allgather;
        config.allgather_context = (void *)gather;
    }
    return deepep_go_done(deep_ep_comm_create(&config, out));
}

static inline deepep_go_outcome deepep_go_comm_create_local(const deep_ep_comm_config_t *config,
                                                            const int32_t *devices, deep_ep_comm_t **out)
{
    return deepep_go_done(deep_ep_comm_create_local(config, devices, out));
}

static inline deepep_go_outcome deepep_go_comm_abort(const deep_ep_comm_t *comm, const char *reason)
{
    return deepep_go_done(deep_ep_comm_abort(comm, reason));
}

static inline deepep_go_outcome deepep_go_comm_destroy(deep_ep_comm_t *comm)
{
    return deepep_go_done(deep_ep_comm_destroy(comm));
}

/* Buffer */

static inline deepep_go_outcome deepep_go_buffer_config_init(deep_ep_buffer_config_t *config)
{
    return deepep_go_done(deep_ep_buffer_config_init(config, sizeof *config));
}

static inline deepep_go_outcome deepep_go_buffer_size(const deep_ep_comm_t *comm,
                                                      const deep_ep_buffer_config_t *config,
                                                      const int32_t *expert_rank, deep_ep_buffer_sizes_t *out)
{
    return deepep_go_done(deep_ep_buffer_size(comm, config, expert_rank, out));
}

static inline deepep_go_outcome deepep_go_buffer_create(deep_ep_comm_t *comm, const deep_ep_buffer_config_t *config,
                                                        const int32_t *expert_rank, deep_ep_buffer_t **out)
{
    return deepep_go_done(deep_ep_buffer_create(comm, config, expert_rank, out));
}

static inline deepep_go_outcome deepep_go_buffer_create_local(deep_ep_comm_t *const *comms,
                                                              const deep_ep_buffer_config_t *config,
                                                              const int32_t *expert_rank, deep_ep_buffer_t **out)
{
    return deepep_go_done(deep_ep_buffer_create_local(comms, config, expert_rank, out));
}

static inline deepep_go_outcome deepep_go_buffer_barrier(deep_ep_buffer_t *buffer, void *stream)
{
    return deepep_go_done(deep_ep_buffer_barrier(buffer, stream));
}

static inline deepep_go_outcome deepep_go_buffer_report(const deep_ep_buffer_t *buffer, deep_ep_report_t *out,
                                                        int32_t *missing, size_t missing_count)
{
    return deepep_go_done(deep_ep_buffer_report(buffer, out, missing, missing_count));
}

static inline deepep_go_outcome deepep_go_buffer_set_timeout(const deep_ep_buffer_t *buffer, uint32_t timeout_ms)
{
    return deepep_go_done(deep_ep_buffer_set_timeout(buffer, timeout_ms));
}

static inline deepep_go_outcome deepep_go_buffer_reset(deep_ep_buffer_t *buffer, const uint8_t *alive)
{
    return deepep_go_done(deep_ep_buffer_reset(buffer, alive));
}

static inline deepep_go_outcome deepep_go_buffer_destroy(deep_ep_buffer_t *buffer)
{
    return deepep_go_done(deep_ep_buffer_destroy(buffer));
}

static inline deepep_go_outcome deepep_go_buffer_statistics(const deep_ep_buffer_t *buffer,
                                                            deep_ep_statistics_t *out)
{
    return deepep_go_done(deep_ep_buffer_statistics(buffer, out));
}

static inline deepep_go_outcome deepep_go_buffer_peer_statistics(const deep_ep_buffer_t *buffer, int32_t peer,
                                                                 deep_ep_peer_statistics_t *out)
{
    return deepep_go_done(deep_ep_buffer_peer_statistics(buffer, peer, out));
}

static inline deepep_go_outcome deepep_go_buffer_expert_statistics(const deep_ep_buffer_t *buffer, uint64_t *rows,
                                                                   size_t count)
{
    return deepep_go_done(deep_ep_buffer_expert_statistics(buffer, rows, count));
}

static inline deepep_go_outcome deepep_go_buffer_local_experts(const deep_ep_buffer_t *buffer, int32_t *experts,
                                                               size_t capacity, size_t *count)
{
    return deepep_go_done(deep_ep_buffer_local_experts(buffer, experts, capacity, count));
}

static inline deepep_go_outcome deepep_go_buffer_alive(const deep_ep_buffer_t *buffer, uint8_t *alive, size_t count)
{
    return deepep_go_done(deep_ep_buffer_alive(buffer, alive, count));
}

static inline deepep_go_outcome deepep_go_buffer_trace(const deep_ep_buffer_t *buffer, char *json, size_t capacity,
                                                       size_t *needed)
{
    return deepep_go_done(deep_ep_buffer_trace(buffer, json, capacity, needed));
}

/* Handle */

/* Addresses of memory that is not Go's, one for each pointer of the struct of the same name. */
typedef struct {
    uintptr_t x, x_scales, topk_idx, topk_weights, num_tokens;
} deepep_go_dispatch_in_addresses;

typedef struct {
    uintptr_t x, scales, topk_idx, topk_weights, row_source, rank_counts, expert_counts, expert_offsets, true_rows,
        source_ranges;
} deepep_go_dispatch_out_addresses;

typedef struct {
    uintptr_t x, row_weights, topk_weights, carried_weights;
} deepep_go_combine_in_addresses;

typedef struct {
    uintptr_t x, bias0, bias1, carried_weights;
} deepep_go_combine_out_addresses;

static inline deepep_go_outcome deepep_go_handle_create(deep_ep_buffer_t *buffer, deep_ep_handle_t **out)
{
    return deepep_go_done(deep_ep_handle_create(buffer, out));
}

enum { DEEPEP_GO_SEND = 1, DEEPEP_GO_RECV = 2 };

/* steps: DEEPEP_GO_SEND, DEEPEP_GO_RECV, or both for the whole operation in one call. After a receive `out` says what
 * the library chose; pointers that the caller passed are null in it. */
static inline deepep_go_outcome deepep_go_handle_dispatch(
    int32_t steps, deep_ep_handle_t *handle, void *stream,
    /* in */
    const deep_ep_dispatch_in_t *in, const deepep_go_dispatch_in_addresses *in_at, const uint8_t *x,
    const uint8_t *x_scales, const int32_t *idx32, const int64_t *idx64, const float *weights,
    const int32_t *num_tokens,
    /* out */
    deep_ep_dispatch_out_t *out, const deepep_go_dispatch_out_addresses *out_at, uint8_t *rows, uint8_t *scales,
    int32_t *topk_idx, float *topk_weights, int64_t *row_source, int32_t *rank_counts, int32_t *expert_counts,
    int64_t *expert_offsets, int64_t *true_rows, int32_t *source_ranges)
{
    deep_ep_dispatch_in_t i = *in;
    deep_ep_dispatch_out_t o = *out;
    if (steps & DEEPEP_GO_SEND) {
        i.x.data = deepep_go_at(x, in_at->x);
        i.x_scales.data = deepep_go_at(x_scales, in_at->x_scales);
        i.topk_idx = idx64 ? (const void *)idx64 : deepep_go_at(idx32, in_at->topk_idx);
        i.topk_weights = deepep_go_at(weights, in_at->topk_weights);
        i.num_tokens_device = deepep_go_at(num_tokens, in_at->num_tokens);
    }
    if (steps == DEEPEP_GO_SEND) {
        return deepep_go_done(deep_ep_handle_dispatch_send(handle, &i, stream));
    }
    o.x.data = deepep_go_at(rows, out_at->x);
    o.scales.data = deepep_go_at(scales, out_at->scales);
    o.topk_idx = deepep_go_at(topk_idx, out_at->topk_idx);
    o.topk_weights = deepep_go_at(topk_weights, out_at->topk_weights);
    o.row_source = deepep_go_at(row_source, out_at->row_source);
    o.rank_counts = deepep_go_at(rank_counts, out_at->rank_counts);
    o.expert_counts = deepep_go_at(expert_counts, out_at->expert_counts);
    o.expert_offsets = deepep_go_at(expert_offsets, out_at->expert_offsets);
    o.true_rows = deepep_go_at(true_rows, out_at->true_rows);
    o.source_ranges = deepep_go_at(source_ranges, out_at->source_ranges);
    deepep_go_outcome outcome = deepep_go_done(steps & DEEPEP_GO_SEND ? deep_ep_handle_dispatch(handle, &i, &o, stream)
                                                  : deep_ep_handle_dispatch_recv(handle, &o, stream));
    if (rows) o.x.data = NULL;
    if (scales) o.scales.data = NULL;
    if (topk_idx) o.topk_idx = NULL;
    if (topk_weights) o.topk_weights = NULL;
    if (row_source) o.row_source = NULL;
    if (rank_counts) o.rank_counts = NULL;
    if (expert_counts) o.expert_counts = NULL;
    if (expert_offsets) o.expert_offsets = NULL;
    if (true_rows) o.true_rows = NULL;
    if (source_ranges) o.source_ranges = NULL;
    *out = o;
    return outcome;
}

static inline deepep_go_outcome deepep_go_handle_wait_counts(deep_ep_handle_t *handle, int64_t *expert_counts,
                                                             int64_t *rows, uint32_t timeout_ms)
{
    return deepep_go_done(deep_ep_handle_wait_counts(handle, expert_counts, rows, timeout_ms));
}

static inline deepep_go_outcome deepep_go_handle_combine_input(deep_ep_handle_t *handle, deep_ep_rows_t *x,
                                                               void *stream)
{
    return deepep_go_done(deep_ep_handle_combine_input(handle, x, stream));
}

static inline deepep_go_outcome deepep_go_handle_release(deep_ep_handle_t *handle, void *stream)
{
    return deepep_go_done(deep_ep_handle_release(handle, stream));
}

/* steps: as for dispatch. */
static inline deepep_go_outcome deepep_go_handle_combine(
    int32_t steps, deep_ep_handle_t *handle, void *stream,
    /* in */
    const deep_ep_combine_in_t *in, const deepep_go_combine_in_addresses *in_at, const uint8_t *rows,
    const float *row_weights, const float *topk_weights, const float *carried_weights,
    /* out */
    const deep_ep_combine_out_t *out, const deepep_go_combine_out_addresses *out_at, uint8_t *x,
    const uint8_t *bias0, const uint8_t *bias1, float *carried_sums)
{
    deep_ep_combine_in_t i = *in;
    deep_ep_combine_out_t o = *out;
    if (steps & DEEPEP_GO_SEND) {
        i.x.data = deepep_go_at(rows, in_at->x);
        i.row_weights = deepep_go_at(row_weights, in_at->row_weights);
        i.topk_weights = deepep_go_at(topk_weights, in_at->topk_weights);
        i.carried_weights = deepep_go_at(carried_weights, in_at->carried_weights);
    }
    if (steps == DEEPEP_GO_SEND) {
        return deepep_go_done(deep_ep_handle_combine_send(handle, &i, stream));
    }
    o.x.data = deepep_go_at(x, out_at->x);
    o.bias[0] = deepep_go_at(bias0, out_at->bias0);
    o.bias[1] = deepep_go_at(bias1, out_at->bias1);
    o.carried_weights = deepep_go_at(carried_sums, out_at->carried_weights);
    return deepep_go_done(steps & DEEPEP_GO_SEND ? deep_ep_handle_combine(handle, &i, &o, stream)
                             : deep_ep_handle_combine_recv(handle, &o, stream));
}

static inline deepep_go_outcome deepep_go_handle_destroy(deep_ep_handle_t *handle)
{
    return deepep_go_done(deep_ep_handle_destroy(handle));
}

#endif /* DEEPEP_GO_SHIM_H */
