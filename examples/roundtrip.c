/* Four ranks, one process each. Every token goes to the ranks of its two experts and comes back as the sum of what they
 * made of it. Build: cc roundtrip.c $(pkg-config --cflags --libs deepep) */
#include <deep_ep.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, TOKENS = 8, HIDDEN = 64, EXPERTS = 16, TOPK = 2 };
#define CHECK(call) ((call) == DEEP_EP_SUCCESS ? (void)0 : (fprintf(stderr, "%s\n", deep_ep_last_error()), exit(1)))

static void rank_main(int rank, const deep_ep_unique_id_t *id)
{
    deep_ep_comm_config_t who;
    CHECK(deep_ep_comm_config_init(&who, sizeof who));
    who.rank = rank, who.num_ranks = RANKS, who.unique_id = *id;
    deep_ep_comm_t *comm;
    CHECK(deep_ep_comm_create(&who, &comm)); /* waits for the other ranks */

    deep_ep_buffer_config_t config;
    CHECK(deep_ep_buffer_config_init(&config, sizeof config));
    config.layout = DEEP_EP_PACKED_BY_RANK, config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float), config.num_experts = EXPERTS, config.num_topk = TOPK;
    deep_ep_buffer_t *buffer;
    CHECK(deep_ep_buffer_create(comm, &config, NULL, &buffer));
    deep_ep_handle_t *handle;
    CHECK(deep_ep_handle_create(buffer, &handle));

    static float x[TOKENS][HIDDEN] __attribute__((aligned(16))), y[TOKENS][HIDDEN] __attribute__((aligned(16)));
    static int32_t ids[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; ++t) {
        ids[t][0] = t, ids[t][1] = 15 - t; /* ranks own four experts each, so these are two different ranks */
        for (int h = 0; h < HIDDEN; ++h) x[t][h] = (float)(rank * 1000 + t * 10 + h);
    }
    deep_ep_dispatch_in_t in;
    deep_ep_dispatch_out_t out;
    CHECK(deep_ep_dispatch_in_init(&in, sizeof in));
    CHECK(deep_ep_dispatch_out_init(&out, sizeof out)); /* everything arrives in memory of the library */
    in.num_tokens = TOKENS, in.hidden = HIDDEN, in.topk_idx = ids, in.topk_idx_dtype = DEEP_EP_INT32;
    in.x.data = x, in.x.rows = TOKENS, in.x.dtype = DEEP_EP_FP32;
    CHECK(deep_ep_handle_dispatch(handle, &in, &out, NULL));
    printf("rank %d received %lld rows\n", rank, (long long)out.true_rows[0]);

    deep_ep_combine_in_t give; /* experts would work on out.x here; these give every row back as it came */
    deep_ep_combine_out_t take;
    CHECK(deep_ep_combine_in_init(&give, sizeof give));
    CHECK(deep_ep_combine_out_init(&take, sizeof take));
    give.x = out.x, take.x.data = y, take.x.rows = TOKENS;
    CHECK(deep_ep_handle_combine(handle, &give, &take, NULL));
    for (int t = 0; t < TOKENS; ++t)
        for (int h = 0; h < HIDDEN; ++h)
            if (y[t][h] != 2 * x[t][h]) exit(1);
    CHECK(deep_ep_handle_destroy(handle));
    CHECK(deep_ep_buffer_destroy(buffer));
    CHECK(deep_ep_comm_destroy(comm));
}

int main(void)
{
    deep_ep_unique_id_t id; /* a launcher would carry these bytes to the other processes */
    CHECK(deep_ep_unique_id_create(NULL, &id));
    for (int rank = 0; rank < RANKS; ++rank)
        if (fork() == 0) return rank_main(rank, &id), 0;
    int failed = 0, status;
    while (wait(&status) > 0) failed += status != 0;
    return printf("%d of %d ranks failed\n", failed, RANKS), failed != 0;
}
