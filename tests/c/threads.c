/* Four ranks as threads of one process: all four layouts in all three ways to synchronise, while another thread reads
 * what may be read beside them. */

#define _POSIX_C_SOURCE 200809L

#include "exchange.h"

#include <pthread.h>
#include <time.h>

enum { RANKS = 4, LAYOUTS = 4, SYNCS = 3, STEPS = 6 };

static const shape_t SHAPE = {RANKS, 5, 64, 10, 3};
static deep_ep_buffer_t *buffers[LAYOUTS][SYNCS][RANKS];

static void *rank_main(void *argument)
{
    const int rank = *(const int *)argument;
    for (int layout = 0; layout < LAYOUTS; ++layout) {
        for (int sync = 0; sync < SYNCS; ++sync) {
            place_t place = {SHAPE, rank, (uint32_t)layout, layout == DEEP_EP_PACKED_BY_EXPERT ? 4 : 1, NULL};
            CHECK(deep_ep_handle_create(buffers[layout][sync][rank], &place.handle));
            for (int step = 0; step < STEPS; ++step)
                exchange(&place, step);
            CHECK(deep_ep_buffer_barrier(buffers[layout][sync][rank], NULL));
            CHECK(deep_ep_handle_destroy(place.handle));
        }
    }
    return NULL;
}

/* Reads reports and totals of rank 0 until the last buffer has done all its operations. */
static void *observer_main(void *argument)
{
    for (int layout = 0; layout < LAYOUTS; ++layout) {
        for (int sync = 0; sync < SYNCS; ++sync) {
            deep_ep_report_t report;
            deep_ep_statistics_t totals;
            CHECK(deep_ep_report_init(&report, sizeof report));
            CHECK(deep_ep_statistics_init(&totals, sizeof totals));
            while (totals.barriers == 0) {
                CHECK(deep_ep_buffer_statistics(buffers[layout][sync][0], &totals));
                CHECK(deep_ep_buffer_report(buffers[layout][sync][0], &report, NULL, 0));
                EXPECT_EQUAL("report.status", report.status, DEEP_EP_SUCCESS);
                const struct timespec pause = {0, 200000};
                nanosleep(&pause, NULL);
            }
        }
    }
    return argument;
}

int main(void)
{
    deep_ep_comm_config_t who;
    CHECK(deep_ep_comm_config_init(&who, sizeof who));
    who.num_ranks = RANKS;
    deep_ep_comm_t *comms[RANKS];
    CHECK(deep_ep_comm_create_local(&who, NULL, comms));
    for (int layout = 0; layout < LAYOUTS; ++layout) {
        for (int sync = 0; sync < SYNCS; ++sync) {
            deep_ep_buffer_config_t config;
            CHECK(deep_ep_buffer_config_init(&config, sizeof config));
            config.layout = (uint32_t)layout;
            config.sync = (uint32_t)sync;
            config.max_tokens = SHAPE.max_tokens;
            config.max_row_bytes = SHAPE.hidden * 2;
            config.num_experts = SHAPE.experts;
            config.num_topk = SHAPE.topk;
            config.expert_alignment = layout == DEEP_EP_PACKED_BY_EXPERT ? 4 : 0;
            CHECK(deep_ep_buffer_create_local(comms, &config, NULL, buffers[layout][sync]));
        }
    }
    pthread_t threads[RANKS], observer;
    int ranks[RANKS];
    for (int rank = 0; rank < RANKS; ++rank) {
        ranks[rank] = rank;
        if (pthread_create(&threads[rank], NULL, rank_main, &ranks[rank]) != 0)
            abort();
    }
    if (pthread_create(&observer, NULL, observer_main, NULL) != 0)
        abort();
    for (int rank = 0; rank < RANKS; ++rank)
        pthread_join(threads[rank], NULL);
    pthread_join(observer, NULL);

    for (int layout = 0; layout < LAYOUTS; ++layout) {
        for (int sync = 0; sync < SYNCS; ++sync) {
            for (int rank = 0; rank < RANKS; ++rank) {
                deep_ep_statistics_t totals;
                CHECK(deep_ep_statistics_init(&totals, sizeof totals));
                CHECK(deep_ep_buffer_statistics(buffers[layout][sync][rank], &totals));
                EXPECT_EQUAL("dispatches", totals.dispatches, STEPS);
                EXPECT_EQUAL("combines", totals.combines, STEPS);
                CHECK(deep_ep_buffer_destroy(buffers[layout][sync][rank]));
            }
        }
    }
    for (int rank = 0; rank < RANKS; ++rank)
        CHECK(deep_ep_comm_destroy(comms[rank]));
    printf("%d ranks, %d layouts, %d ways to synchronise, %d steps each: every byte as expected\n", RANKS, LAYOUTS, SYNCS,
           STEPS);
    return 0;
}
