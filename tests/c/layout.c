/* Prints size, alignment and field offsets of every public struct, and the value of every constant, as JSON. The
 * bindings that describe the structs a second time compare themselves with it:
 *
 *     {"structs": {"deep_ep_rows_t": {"size": 40, "align": 8, "fields": {"data": {"offset": 0, "size": 8}, ...}}, ...},
 *      "constants": {"DEEP_EP_SUCCESS": 0, ...}}
 */

#include "deep_ep.h"

#include <stdio.h>

static const char *struct_comma = "";
static const char *comma = "";

static void begin(const char *name, size_t size, size_t align)
{
    printf("%s\n    \"%s\": {\n      \"size\": %zu,\n      \"align\": %zu,\n      \"fields\": {", struct_comma, name,
           size, align);
    struct_comma = ",";
    comma = "";
}

static void field(const char *name, size_t offset, size_t size)
{
    printf("%s\n        \"%s\": {\"offset\": %zu, \"size\": %zu}", comma, name, offset, size);
    comma = ",";
}

static void end(void)
{
    printf("\n      }\n    }");
}

static void value(const char *name, long long number)
{
    printf("%s\n    \"%s\": %lld", comma, name, number);
    comma = ",";
}

/* The alignment of a type, without C11's alignof. */
#define ALIGN(type) offsetof(struct { char byte; type member; }, member)
#define BEGIN(type) begin(#type, sizeof(type), ALIGN(type))
#define FIELD(type, name) field(#name, offsetof(type, name), sizeof(((type *)0)->name))
#define VALUE(name) value(#name, (long long)(name))

static void unique_id(void)
{
    BEGIN(deep_ep_unique_id_t);
    FIELD(deep_ep_unique_id_t, bytes);
    end();
}

static void comm_config(void)
{
    BEGIN(deep_ep_comm_config_t);
    FIELD(deep_ep_comm_config_t, struct_size);
    FIELD(deep_ep_comm_config_t, rank);
    FIELD(deep_ep_comm_config_t, num_ranks);
    FIELD(deep_ep_comm_config_t, backend);
    FIELD(deep_ep_comm_config_t, device);
    FIELD(deep_ep_comm_config_t, unique_id);
    FIELD(deep_ep_comm_config_t, allgather);
    FIELD(deep_ep_comm_config_t, allgather_context);
    FIELD(deep_ep_comm_config_t, timeout_ms);
    FIELD(deep_ep_comm_config_t, reserved);
    end();
}

static void buffer_config(void)
{
    BEGIN(deep_ep_buffer_config_t);
    FIELD(deep_ep_buffer_config_t, struct_size);
    FIELD(deep_ep_buffer_config_t, layout);
    FIELD(deep_ep_buffer_config_t, sync);
    FIELD(deep_ep_buffer_config_t, max_tokens);
    FIELD(deep_ep_buffer_config_t, max_recv_rows);
    FIELD(deep_ep_buffer_config_t, max_expert_rows);
    FIELD(deep_ep_buffer_config_t, max_row_bytes);
    FIELD(deep_ep_buffer_config_t, max_scale_bytes);
    FIELD(deep_ep_buffer_config_t, max_combine_row_bytes);
    FIELD(deep_ep_buffer_config_t, num_experts);
    FIELD(deep_ep_buffer_config_t, num_topk);
    FIELD(deep_ep_buffer_config_t, expert_alignment);
    FIELD(deep_ep_buffer_config_t, dispatch_windows);
    FIELD(deep_ep_buffer_config_t, combine_windows);
    FIELD(deep_ep_buffer_config_t, max_in_flight);
    FIELD(deep_ep_buffer_config_t, num_sms);
    FIELD(deep_ep_buffer_config_t, num_stages);
    FIELD(deep_ep_buffer_config_t, timeout_ms);
    FIELD(deep_ep_buffer_config_t, first_timeout_ms);
    FIELD(deep_ep_buffer_config_t, flags);
    FIELD(deep_ep_buffer_config_t, reserved);
    end();
}

static void buffer_sizes(void)
{
    BEGIN(deep_ep_buffer_sizes_t);
    FIELD(deep_ep_buffer_sizes_t, struct_size);
    FIELD(deep_ep_buffer_sizes_t, dispatch_window);
    FIELD(deep_ep_buffer_sizes_t, combine_window);
    FIELD(deep_ep_buffer_sizes_t, signals);
    FIELD(deep_ep_buffer_sizes_t, local_outputs);
    FIELD(deep_ep_buffer_sizes_t, handle);
    FIELD(deep_ep_buffer_sizes_t, pinned_host);
    FIELD(deep_ep_buffer_sizes_t, total_symmetric);
    FIELD(deep_ep_buffer_sizes_t, total_device);
    FIELD(deep_ep_buffer_sizes_t, slabs);
    FIELD(deep_ep_buffer_sizes_t, slab_rows);
    end();
}

static void rows(void)
{
    BEGIN(deep_ep_rows_t);
    FIELD(deep_ep_rows_t, data);
    FIELD(deep_ep_rows_t, rows);
    FIELD(deep_ep_rows_t, row_stride);
    FIELD(deep_ep_rows_t, slot_stride);
    FIELD(deep_ep_rows_t, dtype);
    FIELD(deep_ep_rows_t, reserved);
    end();
}

static void scales(void)
{
    BEGIN(deep_ep_scales_t);
    FIELD(deep_ep_scales_t, data);
    FIELD(deep_ep_scales_t, row_stride);
    FIELD(deep_ep_scales_t, col_stride);
    FIELD(deep_ep_scales_t, slot_stride);
    FIELD(deep_ep_scales_t, dtype);
    FIELD(deep_ep_scales_t, block);
    end();
}

static void dispatch_in(void)
{
    BEGIN(deep_ep_dispatch_in_t);
    FIELD(deep_ep_dispatch_in_t, struct_size);
    FIELD(deep_ep_dispatch_in_t, flags);
    FIELD(deep_ep_dispatch_in_t, num_sms);
    FIELD(deep_ep_dispatch_in_t, num_tokens);
    FIELD(deep_ep_dispatch_in_t, num_tokens_device);
    FIELD(deep_ep_dispatch_in_t, hidden);
    FIELD(deep_ep_dispatch_in_t, x);
    FIELD(deep_ep_dispatch_in_t, x_scales);
    FIELD(deep_ep_dispatch_in_t, topk_idx);
    FIELD(deep_ep_dispatch_in_t, topk_weights);
    FIELD(deep_ep_dispatch_in_t, topk_idx_dtype);
    FIELD(deep_ep_dispatch_in_t, wire_dtype);
    FIELD(deep_ep_dispatch_in_t, wire_scale_dtype);
    FIELD(deep_ep_dispatch_in_t, wire_scale_block);
    end();
}

static void dispatch_out(void)
{
    BEGIN(deep_ep_dispatch_out_t);
    FIELD(deep_ep_dispatch_out_t, struct_size);
    FIELD(deep_ep_dispatch_out_t, x);
    FIELD(deep_ep_dispatch_out_t, scales);
    FIELD(deep_ep_dispatch_out_t, topk_idx);
    FIELD(deep_ep_dispatch_out_t, topk_weights);
    FIELD(deep_ep_dispatch_out_t, row_source);
    FIELD(deep_ep_dispatch_out_t, rank_counts);
    FIELD(deep_ep_dispatch_out_t, expert_counts);
    FIELD(deep_ep_dispatch_out_t, expert_offsets);
    FIELD(deep_ep_dispatch_out_t, true_rows);
    FIELD(deep_ep_dispatch_out_t, source_ranges);
    end();
}

static void combine_in(void)
{
    BEGIN(deep_ep_combine_in_t);
    FIELD(deep_ep_combine_in_t, struct_size);
    FIELD(deep_ep_combine_in_t, flags);
    FIELD(deep_ep_combine_in_t, num_sms);
    FIELD(deep_ep_combine_in_t, hidden);
    FIELD(deep_ep_combine_in_t, x);
    FIELD(deep_ep_combine_in_t, row_weights);
    FIELD(deep_ep_combine_in_t, topk_weights);
    FIELD(deep_ep_combine_in_t, carried_weights);
    end();
}

static void combine_out(void)
{
    BEGIN(deep_ep_combine_out_t);
    FIELD(deep_ep_combine_out_t, struct_size);
    FIELD(deep_ep_combine_out_t, x);
    FIELD(deep_ep_combine_out_t, bias);
    FIELD(deep_ep_combine_out_t, carried_weights);
    end();
}

static void report(void)
{
    BEGIN(deep_ep_report_t);
    FIELD(deep_ep_report_t, struct_size);
    FIELD(deep_ep_report_t, status);
    FIELD(deep_ep_report_t, operation);
    FIELD(deep_ep_report_t, phase);
    FIELD(deep_ep_report_t, rank);
    FIELD(deep_ep_report_t, num_missing);
    FIELD(deep_ep_report_t, first_missing);
    FIELD(deep_ep_report_t, epoch);
    FIELD(deep_ep_report_t, expected);
    FIELD(deep_ep_report_t, seen);
    FIELD(deep_ep_report_t, row);
    FIELD(deep_ep_report_t, value);
    FIELD(deep_ep_report_t, waited_ms);
    FIELD(deep_ep_report_t, reserved);
    end();
}

static void statistics(void)
{
    BEGIN(deep_ep_statistics_t);
    FIELD(deep_ep_statistics_t, struct_size);
    FIELD(deep_ep_statistics_t, epoch);
    FIELD(deep_ep_statistics_t, dispatches);
    FIELD(deep_ep_statistics_t, combines);
    FIELD(deep_ep_statistics_t, barriers);
    FIELD(deep_ep_statistics_t, entry_barriers);
    FIELD(deep_ep_statistics_t, rows_sent);
    FIELD(deep_ep_statistics_t, rows_received);
    FIELD(deep_ep_statistics_t, bytes_sent);
    FIELD(deep_ep_statistics_t, bytes_received);
    FIELD(deep_ep_statistics_t, wait_ns_last);
    FIELD(deep_ep_statistics_t, wait_ns_total);
    end();
}

static void peer_statistics(void)
{
    BEGIN(deep_ep_peer_statistics_t);
    FIELD(deep_ep_peer_statistics_t, struct_size);
    FIELD(deep_ep_peer_statistics_t, rows_sent);
    FIELD(deep_ep_peer_statistics_t, rows_received);
    FIELD(deep_ep_peer_statistics_t, bytes_sent);
    FIELD(deep_ep_peer_statistics_t, bytes_received);
    FIELD(deep_ep_peer_statistics_t, wait_ns_last);
    FIELD(deep_ep_peer_statistics_t, wait_ns_total);
    end();
}

static void constants(void)
{
    comma = "";
    VALUE(DEEP_EP_BUFFER_REFUSE_BAD_IDS);
    VALUE(DEEP_EP_BUFFER_TRACE);
    VALUE(DEEP_EP_DISPATCH_CACHED);
    VALUE(DEEP_EP_COMBINE_EXACT);
    VALUE(DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH);
    VALUE(DEEP_EP_VERSION_MAJOR);
    VALUE(DEEP_EP_VERSION_MINOR);
    VALUE(DEEP_EP_VERSION_PATCH);
    VALUE(DEEP_EP_SUCCESS);
    VALUE(DEEP_EP_INVALID_ARGUMENT);
    VALUE(DEEP_EP_INVALID_STATE);
    VALUE(DEEP_EP_CAPACITY_EXCEEDED);
    VALUE(DEEP_EP_UNSUPPORTED);
    VALUE(DEEP_EP_ABI_MISMATCH);
    VALUE(DEEP_EP_CONFIG_MISMATCH);
    VALUE(DEEP_EP_BUSY);
    VALUE(DEEP_EP_CONCURRENT_USE);
    VALUE(DEEP_EP_INVALID_EXPERT_ID);
    VALUE(DEEP_EP_NO_DRIVER);
    VALUE(DEEP_EP_DRIVER_TOO_OLD);
    VALUE(DEEP_EP_NO_DEVICE);
    VALUE(DEEP_EP_NO_KERNEL_IMAGE);
    VALUE(DEEP_EP_OUT_OF_MEMORY);
    VALUE(DEEP_EP_PEER_UNREACHABLE);
    VALUE(DEEP_EP_CUDA);
    VALUE(DEEP_EP_SYSTEM);
    VALUE(DEEP_EP_TIMEOUT);
    VALUE(DEEP_EP_PEER_FAILED);
    VALUE(DEEP_EP_ABORTED);
    VALUE(DEEP_EP_OP_MISMATCH);
    VALUE(DEEP_EP_INTERNAL);
    VALUE(DEEP_EP_PANIC);
    VALUE(DEEP_EP_BACKEND_AUTO);
    VALUE(DEEP_EP_BACKEND_HOST);
    VALUE(DEEP_EP_BACKEND_CUDA);
    VALUE(DEEP_EP_PACKED_BY_RANK);
    VALUE(DEEP_EP_PACKED_BY_EXPERT);
    VALUE(DEEP_EP_SLOTTED_BY_RANK);
    VALUE(DEEP_EP_SLOTTED_BY_EXPERT);
    VALUE(DEEP_EP_SYNC_AUTO);
    VALUE(DEEP_EP_SYNC_ACK);
    VALUE(DEEP_EP_SYNC_BARRIER);
    VALUE(DEEP_EP_DTYPE_NONE);
    VALUE(DEEP_EP_BF16);
    VALUE(DEEP_EP_FP16);
    VALUE(DEEP_EP_FP32);
    VALUE(DEEP_EP_FP8_E4M3);
    VALUE(DEEP_EP_OPAQUE);
    VALUE(DEEP_EP_INT32);
    VALUE(DEEP_EP_INT64);
    VALUE(DEEP_EP_SCALE_NONE);
    VALUE(DEEP_EP_SCALE_FP32);
    VALUE(DEEP_EP_SCALE_FP32_POW2);
    VALUE(DEEP_EP_SCALE_UE8M0_PACKED);
    VALUE(DEEP_EP_SCALE_OPAQUE);
    VALUE(DEEP_EP_OPERATION_NONE);
    VALUE(DEEP_EP_OPERATION_DISPATCH);
    VALUE(DEEP_EP_OPERATION_COMBINE);
    VALUE(DEEP_EP_OPERATION_BARRIER);
    VALUE(DEEP_EP_OPERATION_RESET);
    VALUE(DEEP_EP_PHASE_NONE);
    VALUE(DEEP_EP_PHASE_ENTER);
    VALUE(DEEP_EP_PHASE_COUNTS);
    VALUE(DEEP_EP_PHASE_DATA);
    VALUE(DEEP_EP_PHASE_READ);
}

int main(void)
{
    printf("{\n  \"structs\": {");
    unique_id();
    comm_config();
    buffer_config();
    buffer_sizes();
    rows();
    scales();
    dispatch_in();
    dispatch_out();
    combine_in();
    combine_out();
    report();
    statistics();
    peer_statistics();
    printf("\n  },\n  \"constants\": {");
    constants();
    printf("\n  }\n}\n");
    return 0;
}
