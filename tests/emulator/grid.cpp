#include "grid.h"
#include "random.h"

namespace emulator {

Grid::Grid(const Launch &launch, std::shared_ptr<const bool> before)
    : launch(launch), threads_left(size_t(launch.blocks) * launch.threads), before(std::move(before)) {
    for (unsigned block = 0; block < launch.blocks; block++)
        blocks.push_back(std::make_unique<Block>(*this, block, launch.threads, launch.dynamic_bytes));
}

void Grid::step() {
    block_size.x = launch.threads;
    grid_size.x = launch.blocks;
    unsigned first = random_below(launch.blocks);
    unsigned some = random_below(4) == 0 ? launch.blocks : 1 + random_below(launch.blocks);
    for (unsigned i = 0; i < some; i++) blocks[(first + i) % launch.blocks]->step();
}

bool Grid::lets_next_come() const {
    for (const auto &block : blocks)
        if (!block->lets_next_come && block->ended < block->threads.size()) return false;
    return true;
}

void await_kernel_before() {
    while (current->block.grid.has_predecessor()) yield();
}

void let_next_kernel_come() { current->block.lets_next_come = true; }

bool Grid::copies_done() const {
    for (const auto &block : blocks)
        if (!block->copies.is_empty()) return false;
    return true;
}

} // namespace emulator
