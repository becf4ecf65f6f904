/* One dispatch and its combine through the C ABI, with every byte compared with the plain reference. Used by ranks
 * that are threads (threads.c) and by ranks that are processes (roundtrip.c). */

#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "deep_ep.h"
#include "plain.h"

#define CHECK(call)                                                                                            \
    do {                                                                                                       \
        const deep_ep_status_t status_ = (call);                                                               \
        if (status_ != DEEP_EP_SUCCESS) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, deep_ep_status_string(status_),             \
                    deep_ep_last_error());                                                                     \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

/* Everything exchange() needs to know about one rank's place. */
typedef struct {
    shape_t shape;
    int rank;
    uint32_t layout;
    int alignment; /* PACKED_BY_EXPERT */
    deep_ep_handle_t *handle;
} place_t;

/* What the reference says a dispatch gives: by flat row number (slab * rows per slab + row). */
typedef struct {
    int64_t rows; /* room in all slabs */
    int32_t *ids; /* width numbers per row */
    float *weights;
    int64_t *source;
    int *step_source; /* rank and token of each row, -1 where there is none */
    int *step_token;
    int32_t *expert_counts, *rank_counts, *ranges;
    int64_t *offsets;
    int64_t sent_rows, present, end; /* rows over the link, rows handed out, end of the last (packed) */
} expected_t;

static inline void *zeroed(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (memory == NULL)
        abort();
    return memory;
}

static inline int by_expert(const place_t *p)
{
    return p->layout == DEEP_EP_PACKED_BY_EXPERT || p->layout == DEEP_EP_SLOTTED_BY_EXPERT;
}

static inline int slotted(const place_t *p)
{
    return p->layout == DEEP_EP_SLOTTED_BY_RANK || p->layout == DEEP_EP_SLOTTED_BY_EXPERT;
}

static inline int slabs(const place_t *p)
{
    if (!slotted(p))
        return 1;
    return by_expert(p) ? plain_local_experts(&p->shape, p->rank) : p->shape.ranks;
}

/* Notes that the row `flat` holds a token: all its local experts (by rank) or one of them (by expert). */
static inline void expect_row(const place_t *p, expected_t *e, int step, int64_t flat, int source, int token,
                              const int32_t *ids, int expert)
{
    const shape_t *s = &p->shape;
    ++e->present;
    e->step_source[flat] = source;
    e->step_token[flat] = token;
    e->source[flat] = (int64_t)source * s->max_tokens + token;
    if (expert >= 0) {
        e->ids[flat] = expert - plain_first_expert(s, p->rank);
        e->weights[flat] = plain_weight(step, source, token, plain_find(s, ids, expert));
        return;
    }
    for (int k = 0; k < s->topk; ++k) {
        if (ids[k] >= 0 && plain_owner(s, ids[k]) == p->rank) {
            e->ids[flat * s->topk + k] = ids[k] - plain_first_expert(s, p->rank);
            e->weights[flat * s->topk + k] = plain_weight(step, source, token, k);
        }
    }
}

/* Walks over all tokens of all ranks. `slab_rows` is the room of one slab. */
static inline expected_t expect(const place_t *p, int step, int64_t slab_rows)
{
    const shape_t *s = &p->shape;
    const int locals = plain_local_experts(s, p->rank), first = plain_first_expert(s, p->rank);
    const int width = by_expert(p) ? 1 : s->topk;
    expected_t e = {0};
    e.rows = slab_rows * slabs(p);
    e.ids = (int32_t *)zeroed(e.rows * width, sizeof *e.ids);
    e.weights = (float *)zeroed(e.rows * width, sizeof *e.weights);
    e.source = (int64_t *)zeroed(e.rows, sizeof *e.source);
    e.step_source = (int *)zeroed(e.rows, sizeof *e.step_source);
    e.step_token = (int *)zeroed(e.rows, sizeof *e.step_token);
    e.expert_counts = (int32_t *)zeroed(locals, sizeof *e.expert_counts);
    e.rank_counts = (int32_t *)zeroed(s->ranks, sizeof *e.rank_counts);
    e.ranges = (int32_t *)zeroed((int64_t)locals * s->ranks * 2, sizeof *e.ranges);
    e.offsets = (int64_t *)zeroed(locals + 1, sizeof *e.offsets);
    for (int64_t i = 0; i < e.rows * width; ++i)
        e.ids[i] = -1;
    for (int64_t i = 0; i < e.rows; ++i)
        e.source[i] = e.step_source[i] = e.step_token[i] = -1;

    int32_t ids[32];
    for (int source = 0; source < s->ranks; ++source) {
        int64_t next = p->layout == DEEP_EP_SLOTTED_BY_RANK ? source * slab_rows : e.end;
        for (int token = 0; token < plain_tokens(s, step, source); ++token) {
            plain_ids(s, step, source, token, ids);
            if (!plain_goes_to(s, ids, p->rank))
                continue;
            ++e.sent_rows;
            ++e.rank_counts[source];
            for (int l = 0; l < locals; ++l)
                e.expert_counts[l] += plain_find(s, ids, first + l) >= 0;
            if (!by_expert(p))
                expect_row(p, &e, step, next++, source, token, ids, -1);
        }
        if (!by_expert(p) && !slotted(p))
            e.end = next;
    }
    for (int l = 0; by_expert(p) && l < locals; ++l) {
        int64_t next = slotted(p) ? l * slab_rows : e.end;
        e.offsets[l] = next;
        for (int source = 0; source < s->ranks; ++source) {
            e.ranges[(l * s->ranks + source) * 2] = (int32_t)(next - e.offsets[l]);
            for (int token = 0; token < plain_tokens(s, step, source); ++token) {
                plain_ids(s, step, source, token, ids);
                if (plain_find(s, ids, first + l) < 0)
                    continue;
                expect_row(p, &e, step, next++, source, token, ids, first + l);
                ++e.ranges[(l * s->ranks + source) * 2 + 1];
            }
        }
        e.end = slotted(p) ? 0 : (next + p->alignment - 1) / p->alignment * p->alignment;
        e.offsets[l + 1] = e.end;
    }
    return e;
}

static inline void forget(expected_t *e)
{
    free(e->ids);
    free(e->weights);
    free(e->source);
    free(e->step_source);
    free(e->step_token);
    free(e->expert_counts);
    free(e->rank_counts);
    free(e->ranges);
    free(e->offsets);
}

/* Row `flat` of rows whose strides are filled in. */
static inline uint16_t *row_at(const deep_ep_rows_t *x, int64_t flat)
{
    const int64_t slot_stride = x->slot_stride != 0 ? x->slot_stride : x->rows * x->row_stride;
    return (uint16_t *)((char *)x->data + flat / x->rows * slot_stride + flat % x->rows * x->row_stride);
}

/* Compares all that a dispatch gave. */
static inline void check_dispatch(const place_t *p, const expected_t *e, int step, const deep_ep_dispatch_out_t *out)
{
    const shape_t *s = &p->shape;
    const int locals = plain_local_experts(s, p->rank), width = by_expert(p) ? 1 : s->topk;
    EXPECT_EQUAL("out.x.dtype", out->x.dtype, DEEP_EP_BF16);
    EXPECT_BYTES("topk_idx", out->topk_idx, e->ids, (size_t)(e->rows * width) * sizeof *e->ids);
    EXPECT_BYTES("topk_weights", out->topk_weights, e->weights, (size_t)(e->rows * width) * sizeof *e->weights);
    EXPECT_BYTES("row_source", out->row_source, e->source, (size_t)e->rows * sizeof *e->source);
    EXPECT_BYTES("expert_counts", out->expert_counts, e->expert_counts, (size_t)locals * sizeof *e->expert_counts);
    EXPECT_EQUAL("true_rows[0]", out->true_rows[0], e->sent_rows);
    for (int64_t i = 0; i < e->rows; ++i) {
        const int64_t slab_end = slotted(p) ? 0 : e->end;
        uint16_t *got = row_at(&out->x, i), want[4096] = {0}; /* zeros in the gap behind an expert's rows */
        if (e->step_source[i] < 0 && i >= slab_end)
            continue; /* past the end: not written */
        for (int column = 0; e->step_source[i] >= 0 && column < s->hidden; ++column)
            want[column] = plain_element(step, e->step_source[i], e->step_token[i], column);
        EXPECT_BYTES("a received row", got, want, (size_t)s->hidden * sizeof *want);
    }
    EXPECT_BYTES("rank_counts", out->rank_counts, e->rank_counts, (size_t)s->ranks * sizeof *e->rank_counts);
    if (p->layout == DEEP_EP_PACKED_BY_EXPERT)
        EXPECT_BYTES("expert_offsets", out->expert_offsets, e->offsets, (size_t)(locals + 1) * sizeof *e->offsets);
    else
        EXPECT_EQUAL("expert_offsets is null", out->expert_offsets == NULL, 1);
    if (p->layout == DEEP_EP_SLOTTED_BY_EXPERT)
        EXPECT_BYTES("source_ranges", out->source_ranges, e->ranges, (size_t)(locals * s->ranks * 2) * sizeof(int32_t));
    else
        EXPECT_EQUAL("source_ranges is null", out->source_ranges == NULL, 1);
    if (p->layout != DEEP_EP_PACKED_BY_EXPERT) /* there true_rows[1] counts the gaps too */
        EXPECT_EQUAL("true_rows[1]", out->true_rows[1], e->present);
}

/* Runs the experts: writes one row to `y` for every received row. By rank the weighted sum over the row's experts. */
static inline void run_experts(const place_t *p, const expected_t *e, int step, const deep_ep_dispatch_out_t *out,
                               const deep_ep_rows_t *y)
{
    const shape_t *s = &p->shape;
    const int first = plain_first_expert(s, p->rank);
    for (int64_t i = 0; i < e->rows; ++i) {
        if (e->step_source[i] < 0)
            continue;
        const uint16_t *x = row_at(&out->x, i);
        uint16_t *to = row_at(y, i);
        for (int column = 0; column < s->hidden; ++column) {
            float sum = 0.0f;
            for (int k = 0; !by_expert(p) && k < s->topk; ++k)
                if (out->topk_idx[i * s->topk + k] >= 0)
                    sum = fmaf(out->topk_weights[i * s->topk + k],
                               plain_widen(plain_expert(first + out->topk_idx[i * s->topk + k], x[column])), sum);
            to[column] = by_expert(p) ? plain_expert(first + out->topk_idx[i], x[column]) : plain_narrow(sum);
        }
    }
    (void)step;
}

/* Dispatch, experts and combine of step `step`. Odd steps receive into memory of the caller, every other pair of steps
 * writes the expert outputs in place, every third step uses the calls in halves. */
static inline void exchange(const place_t *p, int step)
{
    const shape_t *s = &p->shape;
    const int tokens = plain_tokens(s, step, p->rank), halves = step % 3 == 2;
    const int64_t row_bytes = (int64_t)s->hidden * 2;
    uint16_t *x = (uint16_t *)zeroed((int64_t)s->max_tokens * s->hidden, sizeof *x);
    uint16_t *y = (uint16_t *)zeroed((int64_t)s->max_tokens * s->hidden, sizeof *y);
    int32_t *ids = (int32_t *)zeroed(s->max_tokens * s->topk, sizeof *ids);
    float *weights = (float *)zeroed(s->max_tokens * s->topk, sizeof *weights);
    for (int token = 0; token < tokens; ++token) {
        plain_ids(s, step, p->rank, token, ids + token * s->topk);
        for (int k = 0; k < s->topk; ++k)
            weights[token * s->topk + k] = plain_weight(step, p->rank, token, k);
        for (int column = 0; column < s->hidden; ++column)
            x[token * s->hidden + column] = plain_element(step, p->rank, token, column);
    }

    deep_ep_dispatch_in_t in;
    CHECK(deep_ep_dispatch_in_init(&in, sizeof in));
    in.num_tokens = tokens;
    in.hidden = s->hidden;
    in.x.data = x;
    in.x.rows = tokens;
    in.x.dtype = DEEP_EP_BF16;
    in.topk_idx = ids;
    in.topk_idx_dtype = DEEP_EP_INT32;
    in.topk_weights = weights;

    deep_ep_dispatch_out_t out;
    CHECK(deep_ep_dispatch_out_init(&out, sizeof out));
    uint16_t *mine = NULL;
    if (step % 2 == 1) { /* room for every case there can be */
        const int64_t locals = plain_local_experts(s, p->rank);
        out.x.rows = (int64_t)s->ranks * s->max_tokens;
        if (p->layout == DEEP_EP_SLOTTED_BY_RANK)
            out.x.rows = s->max_tokens;
        if (p->layout == DEEP_EP_PACKED_BY_EXPERT)
            out.x.rows = out.x.rows * s->topk + locals * p->alignment;
        out.x.row_stride = row_bytes;
        out.x.dtype = DEEP_EP_BF16;
        out.x.data = mine = (uint16_t *)zeroed(out.x.rows * slabs(p) * s->hidden, sizeof *mine);
    }
    if (halves) {
        CHECK(deep_ep_handle_dispatch_send(p->handle, &in, NULL));
        CHECK(deep_ep_handle_dispatch_recv(p->handle, &out, NULL));
    } else {
        CHECK(deep_ep_handle_dispatch(p->handle, &in, &out, NULL));
    }
    expected_t e = expect(p, step, out.x.rows);
    check_dispatch(p, &e, step, &out);
    int64_t present = -1;
    CHECK(deep_ep_handle_wait_counts(p->handle, NULL, &present, 0));
    EXPECT_EQUAL("rows of wait_counts", present, p->layout == DEEP_EP_PACKED_BY_EXPERT ? e.end : e.present);

    deep_ep_combine_in_t give;
    CHECK(deep_ep_combine_in_init(&give, sizeof give));
    uint16_t *outputs = NULL;
    give.x.dtype = DEEP_EP_BF16;
    if (step / 2 % 2 == 0) {
        CHECK(deep_ep_handle_combine_input(p->handle, &give.x, NULL));
    } else {
        give.x.rows = out.x.rows;
        give.x.row_stride = row_bytes;
        give.x.data = outputs = (uint16_t *)zeroed(e.rows * s->hidden, sizeof *outputs);
    }
    EXPECT_EQUAL("rows of the combine input", give.x.rows >= out.x.rows || slotted(p), 1);
    run_experts(p, &e, step, &out, &give.x);
    int mode = PLAIN_BY_RANK;
    if (by_expert(p)) {
        mode = step % 2 == 0 ? PLAIN_REDUCED : PLAIN_EXACT;
        give.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH | (mode == PLAIN_EXACT ? DEEP_EP_COMBINE_EXACT : 0u);
    }
    deep_ep_combine_out_t take;
    CHECK(deep_ep_combine_out_init(&take, sizeof take));
    take.x.data = y;
    take.x.rows = tokens;
    if (halves) {
        CHECK(deep_ep_handle_combine_send(p->handle, &give, NULL));
        CHECK(deep_ep_handle_combine_recv(p->handle, &take, NULL));
    } else {
        CHECK(deep_ep_handle_combine(p->handle, &give, &take, NULL));
    }
    for (int token = 0; token < tokens; ++token)
        for (int column = 0; column < s->hidden; ++column)
            EXPECT_EQUAL("a combined element", y[token * s->hidden + column],
                         plain_combined(s, step, p->rank, token, column, mode));

    forget(&e);
    free(x);
    free(y);
    free(ids);
    free(weights);
    free(mine);
    free(outputs);
}

#endif
