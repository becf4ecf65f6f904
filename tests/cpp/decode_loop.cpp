// The decode loop of an engine: four ranks as threads, a few MoE layers that share one slotted buffer, batches that
// grow, shrink and run empty. The experts read their slabs where the rows arrived and write their outputs where the
// combine reads them; the residual is added by the combine. Every byte is compared with a plain reference.

#include "deep_ep.hpp"

#include "../c/plain.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

namespace {

constexpr shape_t SHAPE = {4, 6, 128, 14, 4}; // ranks, tokens, hidden, experts, topk
constexpr int LAYERS = 3;
constexpr int STEPS = 9;

using Row = std::vector<std::uint16_t>;
using Batch = std::vector<Row>; // one row per token

/// The routing of a layer is a step of the traffic generator.
int traffic(int step, int layer) { return step * LAYERS + layer; }

/// One layer of the reference: what it makes of the batch of `rank`.
Batch reference_layer(int step, int layer, int rank, const Batch &batch) {
    Batch result;
    for (int token = 0; token < static_cast<int>(batch.size()); ++token) {
        std::int32_t ids[32];
        plain_ids(&SHAPE, traffic(step, layer), rank, token, ids);
        Row row;
        for (const std::uint16_t x : batch[static_cast<std::size_t>(token)]) {
            float sum = plain_widen(x);
            for (int last = 0; last < SHAPE.topk; ++last) { // partial sums, by the largest k on their rank
                const int owner = ids[last] < 0 ? -1 : plain_owner(&SHAPE, ids[last]);
                float partial = 0;
                bool is_last = owner >= 0;
                for (int k = 0; k < SHAPE.topk; ++k) {
                    if (ids[k] < 0 || plain_owner(&SHAPE, ids[k]) != owner)
                        continue;
                    is_last = is_last && k <= last;
                    const float output = plain_widen(plain_expert(ids[k], x));
                    partial = std::fmaf(plain_weight(traffic(step, layer), rank, token, k), output, partial);
                }
                if (is_last)
                    sum += plain_widen(plain_narrow(partial));
            }
            row.push_back(plain_narrow(sum));
        }
        result.push_back(row);
    }
    return result;
}

Batch first_batch(int step, int rank) {
    Batch batch;
    for (int token = 0; token < plain_tokens(&SHAPE, step, rank); ++token) {
        Row row;
        for (int column = 0; column < SHAPE.hidden; ++column)
            row.push_back(plain_element(step, rank, token, column));
        batch.push_back(row);
    }
    return batch;
}

/// The rows of a batch as one piece of memory of the engine.
class States {
public:
    States() : memory_(static_cast<std::size_t>(SHAPE.max_tokens * SHAPE.hidden)) {}

    std::uint16_t *data() { return memory_.data(); }
    std::uint16_t *token(int index) { return memory_.data() + index * SHAPE.hidden; }
    deep_ep_rows_t rows(int tokens) {
        return deepep::rows(memory_.data(), tokens, SHAPE.hidden, DEEP_EP_BF16);
    }

private:
    std::vector<std::uint16_t> memory_;
};

class Engine {
public:
    Engine(int rank, deepep::Buffer &buffer) : rank_(rank), experts_(buffer.local_experts()) {
        for (int layer = 0; layer < LAYERS; ++layer)
            handles_.emplace_back(buffer);
    }

    /// One token of every sequence of the batch goes through all layers.
    void step(int step) {
        const int tokens = plain_tokens(&SHAPE, step, rank_);
        std::vector<Batch> batches; // the reference, of all ranks
        for (int rank = 0; rank < SHAPE.ranks; ++rank)
            batches.push_back(first_batch(step, rank));
        States now, next;
        for (int token = 0; token < tokens; ++token)
            std::memcpy(now.token(token), batches[static_cast<std::size_t>(rank_)][static_cast<std::size_t>(token)].data(),
                        static_cast<std::size_t>(SHAPE.hidden) * 2);
        for (int layer = 0; layer < LAYERS; ++layer) {
            moe(step, layer, tokens, batches, now, next);
            std::swap(now, next);
            for (int rank = 0; rank < SHAPE.ranks; ++rank)
                batches[static_cast<std::size_t>(rank)] =
                    reference_layer(step, layer, rank, batches[static_cast<std::size_t>(rank)]);
            const Batch &want = batches[static_cast<std::size_t>(rank_)];
            for (int token = 0; token < tokens; ++token)
                EXPECT_BYTES("a token after a layer", now.token(token), want[static_cast<std::size_t>(token)].data(),
                             SHAPE.hidden * 2);
        }
    }

private:
    void moe(int step, int layer, int tokens, const std::vector<Batch> &batches, States &now, States &next) {
        std::vector<std::int64_t> ids; // the gate of this engine speaks int64
        std::vector<float> weights;
        for (int token = 0; token < tokens; ++token) {
            std::int32_t narrow[32];
            plain_ids(&SHAPE, traffic(step, layer), rank_, token, narrow);
            ids.insert(ids.end(), narrow, narrow + SHAPE.topk);
            for (int k = 0; k < SHAPE.topk; ++k)
                weights.push_back(plain_weight(traffic(step, layer), rank_, token, k));
        }
        deepep::Handle &handle = handles_[static_cast<std::size_t>(layer)];

        deepep::DispatchIn in;
        in.num_tokens = tokens;
        in.hidden = SHAPE.hidden;
        in.x = now.rows(tokens);
        in.topk_idx = ids.data();
        in.topk_idx_dtype = DEEP_EP_INT64;
        in.topk_weights = weights.data();
        deepep::DispatchOut out;
        handle.dispatch(in, out);

        deepep::CombineIn outputs;
        outputs.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
        outputs.x = handle.combine_input(DEEP_EP_BF16);
        run_experts(batches, out, outputs.x);

        deepep::CombineOut sums;
        sums.x = next.rows(tokens);
        sums.bias[0] = now.data();
        handle.combine(outputs, sums);
    }

    /// A masked GEMM, as far as this test is concerned: every expert works on the rows its counter says are there.
    void run_experts(const std::vector<Batch> &batches, const deepep::DispatchOut &out, const deep_ep_rows_t &outputs) {
        for (std::size_t local = 0; local < experts_.size(); ++local) {
            const auto slot = static_cast<std::int64_t>(local);
            for (std::int64_t i = 0; i < out.expert_counts[local]; ++i) {
                const auto *x = deepep::row<const std::uint16_t>(out.x, i, slot);
                const std::int64_t source = out.row_source[slot * out.x.rows + i];
                const Batch &sent = batches[static_cast<std::size_t>(source / SHAPE.max_tokens)];
                EXPECT_BYTES("a received row", x, sent[static_cast<std::size_t>(source % SHAPE.max_tokens)].data(),
                             SHAPE.hidden * 2);
                auto *y = deepep::row<std::uint16_t>(outputs, i, slot);
                for (int column = 0; column < SHAPE.hidden; ++column)
                    y[column] = plain_expert(experts_[local], x[column]);
            }
        }
    }

    int rank_;
    std::vector<std::int32_t> experts_;
    std::vector<deepep::Handle> handles_;
};

} // namespace

int main() {
    try {
        deepep::BufferConfig config;
        config.layout = DEEP_EP_SLOTTED_BY_EXPERT;
        config.max_tokens = SHAPE.max_tokens;
        config.max_row_bytes = SHAPE.hidden * 2;
        config.num_experts = SHAPE.experts;
        config.num_topk = SHAPE.topk;
        const auto comms = deepep::Comm::local(SHAPE.ranks);
        auto buffers = deepep::Buffer::local(comms, config);

        std::atomic<int> failed{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < SHAPE.ranks; ++rank)
            threads.emplace_back([&, rank] {
                try {
                    Engine engine(rank, buffers[static_cast<std::size_t>(rank)]);
                    for (int step = 0; step < STEPS; ++step)
                        engine.step(step);
                } catch (const std::exception &error) {
                    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
                    comms[static_cast<std::size_t>(rank)].abort(error.what());
                    ++failed;
                }
            });
        for (std::thread &thread : threads)
            thread.join();
        for (const deepep::Buffer &buffer : buffers) {
            EXPECT_EQUAL("dispatches", buffer.statistics().dispatches, STEPS * LAYERS);
            EXPECT_EQUAL("report", buffer.report().status, DEEP_EP_SUCCESS);
        }
        std::printf("%d ranks, %d layers, %d steps: every byte as expected\n", SHAPE.ranks, LAYERS, STEPS);
        return failed != 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
