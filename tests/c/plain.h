/* The plain reference of the C and C++ tests: the traffic of a group as a function of a few numbers, and what a
 * dispatch and a combine of it must give, computed by walking over all tokens of all ranks. Shares nothing with the
 * library. Experts split evenly: the first experts % ranks ranks own one more. */

#ifndef PLAIN_H
#define PLAIN_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int ranks, max_tokens, hidden, experts, topk;
} shape_t;

/* A well mixed number for up to four small ones. */
static inline uint32_t plain_mix(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint64_t x = ((uint64_t)a << 48) ^ ((uint64_t)b << 32) ^ ((uint64_t)c << 16) ^ d;
    x = (x + UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((x ^ (x >> 31)) >> 16);
}

/* Ownership of experts. */
static inline int plain_local_experts(const shape_t *s, int rank)
{
    return s->experts / s->ranks + (rank < s->experts % s->ranks ? 1 : 0);
}

static inline int plain_first_expert(const shape_t *s, int rank)
{
    const int extra = s->experts % s->ranks;
    return rank * (s->experts / s->ranks) + (rank < extra ? rank : extra);
}

static inline int plain_owner(const shape_t *s, int expert)
{
    int rank = 0;
    while (expert >= plain_first_expert(s, rank) + plain_local_experts(s, rank))
        ++rank;
    return rank;
}

/* The traffic of step `step`. Rank 1 has no tokens in every third step. */
static inline int plain_tokens(const shape_t *s, int step, int rank)
{
    if (step % 3 == 1 && rank == 1 % s->ranks)
        return 0;
    return (int)(plain_mix(1, (uint32_t)step, (uint32_t)rank, 0) % (uint32_t)(s->max_tokens + 1));
}

/* Writes the topk ids of one token: different experts, about one in eight -1. */
static inline void plain_ids(const shape_t *s, int step, int rank, int token, int32_t *ids)
{
    for (int k = 0; k < s->topk; ++k) {
        const uint32_t random = plain_mix((uint32_t)(100 + step), (uint32_t)rank, (uint32_t)token, (uint32_t)k);
        if (random % 8 == 0) {
            ids[k] = -1;
            continue;
        }
        int32_t expert = (int32_t)(random / 8 % (uint32_t)s->experts);
        for (int j = 0; j < k; ++j) {
            if (ids[j] == expert) { /* taken: try the next one from the start */
                expert = (expert + 1) % s->experts;
                j = -1;
            }
        }
        ids[k] = expert;
    }
}

static inline float plain_weight(int step, int rank, int token, int k)
{
    return (float)(1 + plain_mix((uint32_t)(200 + step), (uint32_t)rank, (uint32_t)token, (uint32_t)k) % 255) / 256.0f;
}

/* BF16. */
static inline float plain_widen(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t plain_narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static inline uint16_t plain_element(int step, int rank, int token, int column)
{
    const uint32_t random = plain_mix((uint32_t)(300 + step), (uint32_t)rank, (uint32_t)token, (uint32_t)column);
    return plain_narrow(((float)(random % 2001) - 1000.0f) / 64.0f);
}

/* What expert `expert` makes of one element: a BF16 number again. */
static inline uint16_t plain_expert(int expert, uint16_t x)
{
    return plain_narrow(plain_widen(x) * (1.0f + (float)expert / 8.0f) + (float)expert);
}

/* How a combine sums. */
enum { PLAIN_BY_RANK, PLAIN_REDUCED, PLAIN_EXACT };

/* The partial sum of one token's experts on one rank, before rounding, in ascending k. */
static inline float plain_partial(const shape_t *s, int step, int rank, int token, const int32_t *ids, int column,
                                  int owner)
{
    float sum = 0.0f;
    for (int k = 0; k < s->topk; ++k) {
        if (ids[k] >= 0 && (owner < 0 || plain_owner(s, ids[k]) == owner)) {
            const uint16_t y = plain_expert(ids[k], plain_element(step, rank, token, column));
            sum = fmaf(plain_weight(step, rank, token, k), plain_widen(y), sum);
        }
    }
    return sum;
}

/* The combined element of one token: weighted, on the expert's rank (by rank, reduced) or on the token's (exact).
 * Partial sums cross as BF16; by rank they are added in ascending rank, reduced in ascending order of the largest k
 * that the token has on the rank. */
static inline uint16_t plain_combined(const shape_t *s, int step, int rank, int token, int column, int mode)
{
    int32_t ids[32];
    plain_ids(s, step, rank, token, ids);
    if (mode == PLAIN_EXACT)
        return plain_narrow(plain_partial(s, step, rank, token, ids, column, -1));
    float sum = 0.0f;
    for (int turn = 0; turn < (mode == PLAIN_BY_RANK ? s->ranks : s->topk); ++turn) {
        int owner = turn;
        int present = 0;
        if (mode == PLAIN_REDUCED) {
            if (ids[turn] < 0)
                continue;
            owner = plain_owner(s, ids[turn]);
            present = 1;
            for (int k = turn + 1; k < s->topk; ++k) /* a later k on the same rank: its turn is then */
                present = present && !(ids[k] >= 0 && plain_owner(s, ids[k]) == owner);
        } else {
            for (int k = 0; k < s->topk; ++k)
                present = present || (ids[k] >= 0 && plain_owner(s, ids[k]) == owner);
        }
        if (present)
            sum += plain_widen(plain_narrow(plain_partial(s, step, rank, token, ids, column, owner)));
    }
    return plain_narrow(sum);
}

/* Whether a token has any expert on `owner`. */
static inline int plain_goes_to(const shape_t *s, const int32_t *ids, int owner)
{
    for (int k = 0; k < s->topk; ++k)
        if (ids[k] >= 0 && plain_owner(s, ids[k]) == owner)
            return 1;
    return 0;
}

/* The place of `expert` among the ids of a token, or -1. */
static inline int plain_find(const shape_t *s, const int32_t *ids, int expert)
{
    for (int k = 0; k < s->topk; ++k)
        if (ids[k] == expert)
            return k;
    return -1;
}

/* Ends the program with a sentence unless two pieces of memory are equal. */
#define EXPECT_BYTES(what, got, want, bytes)                                                                   \
    do {                                                                                                       \
        if (memcmp((got), (want), (size_t)(bytes)) != 0) {                                                     \
            fprintf(stderr, "%s:%d: %s differs from the reference\n", __FILE__, __LINE__, what);               \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define EXPECT_EQUAL(what, got, want)                                                                          \
    do {                                                                                                       \
        const long long got_ = (long long)(got), want_ = (long long)(want);                                    \
        if (got_ != want_) {                                                                                   \
            fprintf(stderr, "%s:%d: %s is %lld, expected %lld\n", __FILE__, __LINE__, what, got_, want_);      \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#endif
