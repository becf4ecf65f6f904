/* Programs with one defect each, on purpose: a checker that lets one of them pass checks nothing.
 *
 *     planted none       no defect
 *     planted overflow   reads one byte behind its memory
 *     planted short      gives the library one row less than it says
 *     planted leak       forgets its memory
 *     planted lost       never destroys a buffer of the library
 *     planted race       two threads write one number
 *     planted reuse      writes the rows of a dispatch, on another thread, while the library reads them
 */

#define _POSIX_C_SOURCE 200809L

#include "deep_ep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 4, HIDDEN = 256 };

static int shared;
static float *rows;

static void check(deep_ep_status_t status)
{
    if (status != DEEP_EP_SUCCESS) {
        fprintf(stderr, "%s\n", deep_ep_last_error());
        exit(1);
    }
}

/* A group of one rank dispatches `rows` to its one expert, a number of times. */
static void dispatch(int times, int destroy)
{
    deep_ep_comm_config_t who;
    deep_ep_comm_t *comm;
    check(deep_ep_comm_config_init(&who, sizeof who));
    check(deep_ep_comm_create_local(&who, NULL, &comm));
    deep_ep_buffer_config_t config;
    deep_ep_buffer_t *buffer;
    deep_ep_handle_t *handle;
    check(deep_ep_buffer_config_init(&config, sizeof config));
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof *rows;
    config.num_experts = 1;
    config.num_topk = 1;
    check(deep_ep_buffer_create(comm, &config, NULL, &buffer));
    check(deep_ep_handle_create(buffer, &handle));
    const int32_t ids[TOKENS] = {0};
    deep_ep_dispatch_in_t in;
    deep_ep_dispatch_out_t out;
    check(deep_ep_dispatch_in_init(&in, sizeof in));
    check(deep_ep_dispatch_out_init(&out, sizeof out));
    in.num_tokens = TOKENS;
    in.hidden = HIDDEN;
    in.x.data = rows;
    in.x.rows = TOKENS;
    in.x.dtype = DEEP_EP_FP32;
    in.topk_idx = ids;
    in.topk_idx_dtype = DEEP_EP_INT32;
    for (int i = 0; i < times; ++i) {
        check(deep_ep_handle_dispatch(handle, &in, &out, NULL));
        check(deep_ep_handle_release(handle, NULL));
    }
    if (destroy) {
        check(deep_ep_handle_destroy(handle));
        check(deep_ep_buffer_destroy(buffer));
        check(deep_ep_comm_destroy(comm));
    }
}

/* More than once: a pointer that happens to be left in a register hides one leak from a checker. */
static void leak(void)
{
    for (int i = 1; i <= 10; ++i) {
        volatile char *lost = malloc((size_t)(16 * i));
        if (lost != NULL)
            *lost = 1;
    }
}

static void *count(void *argument)
{
    for (int i = 0; i < 1000; ++i)
        ++shared;
    return argument;
}

static void *scribble(void *argument)
{
    for (int i = 0; i < 50; ++i) {
        const struct timespec pause = {0, 1000000};
        rows[i % (TOKENS * HIDDEN)] = (float)i;
        nanosleep(&pause, NULL);
    }
    return argument;
}

static void beside(void *(*thread_main)(void *), void (*mine)(void))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_main, NULL) != 0)
        abort();
    mine();
    pthread_join(thread, NULL);
}

static void count_here(void)
{
    count(NULL);
}

static void dispatch_here(void)
{
    for (int i = 0; i < 50; ++i) {
        const struct timespec pause = {0, 1000000};
        dispatch(1, 1);
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    const char *defect = argc > 1 ? argv[1] : "none";
    const size_t count_of_rows = strcmp(defect, "short") == 0 ? TOKENS - 1 : TOKENS;
    rows = calloc(count_of_rows * HIDDEN, sizeof *rows);
    if (rows == NULL)
        abort();
    if (strcmp(defect, "overflow") == 0)
        shared = ((volatile char *)rows)[count_of_rows * HIDDEN * sizeof *rows];
    else if (strcmp(defect, "leak") == 0)
        leak();
    else if (strcmp(defect, "race") == 0)
        beside(count, count_here);
    else if (strcmp(defect, "reuse") == 0)
        beside(scribble, dispatch_here);
    else
        dispatch(1, strcmp(defect, "lost") != 0);
    free(rows);
    rows = NULL;
    puts("the end");
    return shared == 4711;
}
