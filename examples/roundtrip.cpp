// Four ranks, one thread each. Every token goes to its two experts, is weighted where the expert sits, and comes back
// as the sum. Build: c++ -std=c++17 roundtrip.cpp $(pkg-config --cflags --libs deepep)
#include <deep_ep.hpp>
#include <iostream>
#include <thread>

constexpr int RANKS = 4, TOKENS = 8, HIDDEN = 64, EXPERTS = 16, TOPK = 2;

static void rank_main(int rank, deepep::Buffer &buffer) {
    alignas(16) float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
    std::int32_t ids[TOKENS][TOPK];
    float weights[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; ++t) {
        ids[t][0] = t, ids[t][1] = 15 - t;
        weights[t][0] = 0.75f, weights[t][1] = 0.25f;
        for (int h = 0; h < HIDDEN; ++h) x[t][h] = static_cast<float>(rank * 1000 + t * 10 + h);
    }
    deepep::Handle handle(buffer);
    deepep::DispatchIn in;
    in.num_tokens = TOKENS;
    in.hidden = HIDDEN;
    in.x = deepep::rows(x, TOKENS, HIDDEN, DEEP_EP_FP32);
    in.topk_idx = ids;
    in.topk_idx_dtype = DEEP_EP_INT32;
    in.topk_weights = &weights[0][0];
    deepep::DispatchOut out; // everything arrives in memory of the library
    handle.dispatch(in, out);

    deepep::CombineIn outputs;
    outputs.flags = DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
    outputs.x = handle.combine_input(DEEP_EP_FP32); // experts write here, so that nothing is copied
    for (int expert = 0; expert < EXPERTS / RANKS; ++expert)
        for (int i = 0; i < out.expert_counts[expert]; ++i)
            for (int h = 0; h < HIDDEN; ++h) // these double their rows
                deepep::row<float>(outputs.x, i, expert)[h] = 2 * deepep::row<float>(out.x, i, expert)[h];
    deepep::CombineOut sums;
    sums.x = deepep::rows(y, TOKENS, HIDDEN, DEEP_EP_FP32);
    handle.combine(outputs, sums);
    for (int t = 0; t < TOKENS; ++t)
        for (int h = 0; h < HIDDEN; ++h)
            if (y[t][h] != 2 * x[t][h]) throw std::runtime_error("a token came back wrong");
}

int main() {
    deepep::BufferConfig config;
    config.layout = DEEP_EP_SLOTTED_BY_EXPERT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.num_experts = EXPERTS;
    config.num_topk = TOPK;
    auto comms = deepep::Comm::local(RANKS);
    auto buffers = deepep::Buffer::local(comms, config);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < RANKS; ++rank) threads.emplace_back(rank_main, rank, std::ref(buffers[rank]));
    for (auto &thread : threads) thread.join();
    std::cout << buffers[0].statistics().rows_received << " rows reached rank 0\n";
}
