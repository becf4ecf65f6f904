/* Four ranks as four processes that meet by a unique id in a file, packed by rank.
 *
 *     ./roundtrip FILE        writes the id to FILE and starts one process per rank
 *     ./roundtrip FILE RANK     is one of them
 */

#define _POSIX_C_SOURCE 200809L

#include "exchange.h"

#include <sys/wait.h>
#include <unistd.h>

static const shape_t SHAPE = {4, 5, 64, 10, 3};

static void rank_main(const char *file, int rank)
{
    deep_ep_comm_config_t who;
    CHECK(deep_ep_comm_config_init(&who, sizeof who));
    FILE *from = fopen(file, "rb");
    if (from == NULL || fread(&who.unique_id, sizeof who.unique_id, 1, from) != 1)
        exit(1);
    fclose(from);
    who.rank = rank;
    who.num_ranks = SHAPE.ranks;
    deep_ep_comm_t *comm;
    CHECK(deep_ep_comm_create(&who, &comm));

    deep_ep_buffer_config_t config;
    CHECK(deep_ep_buffer_config_init(&config, sizeof config));
    config.layout = DEEP_EP_PACKED_BY_RANK;
    config.max_tokens = SHAPE.max_tokens;
    config.max_row_bytes = SHAPE.hidden * 2;
    config.num_experts = SHAPE.experts;
    config.num_topk = SHAPE.topk;
    deep_ep_buffer_t *buffer;
    CHECK(deep_ep_buffer_create(comm, &config, NULL, &buffer));
    place_t place = {SHAPE, rank, config.layout, 1, NULL};
    CHECK(deep_ep_handle_create(buffer, &place.handle));
    for (int step = 0; step < 6; ++step)
        exchange(&place, step);
    CHECK(deep_ep_buffer_barrier(buffer, NULL));
    CHECK(deep_ep_handle_destroy(place.handle));
    CHECK(deep_ep_buffer_destroy(buffer));
    CHECK(deep_ep_comm_destroy(comm));
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        rank_main(argv[1], atoi(argv[2]));
        return 0;
    }
    if (argc != 2)
        return 2;
    deep_ep_unique_id_t id;
    CHECK(deep_ep_unique_id_create(NULL, &id));
    FILE *to = fopen(argv[1], "wb");
    if (to == NULL || fwrite(&id, sizeof id, 1, to) != 1 || fclose(to) != 0)
        return 1;
    for (int rank = 0; rank < SHAPE.ranks; ++rank) {
        char number[16];
        snprintf(number, sizeof number, "%d", rank);
        if (fork() == 0) {
            execl(argv[0], argv[0], argv[1], number, (char *)NULL);
            _exit(127);
        }
    }
    int failed = 0, status;
    while (wait(&status) > 0)
        failed += status != 0;
    printf("%d of %d ranks failed\n", failed, SHAPE.ranks);
    return failed != 0;
}
