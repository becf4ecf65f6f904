#include "bulk.h"
#include "block.h"
#include "random.h"
#include <cstring>

namespace emulator {

namespace {

const void *addressed(const void *p) { return p; }

// Mostly a few steps, seldom so many that whoever does not wait is long gone.
unsigned random_delay() { return random_below(64) ? random_below(4) : random_below(1000); }

} // namespace

void BulkCopies::add(BulkCopy copy) {
    bool is_aligned = (uintptr_t(copy.to) | uintptr_t(copy.from) | copy.bytes) % 16 == 0;
    const char *shared = copy.barrier ? copy.to : copy.from;
    const char *wrong = nullptr;
    if (!copy.owner->block.has_shared(shared, copy.bytes)) wrong = "is not of shared memory";
    if (!is_aligned || copy.bytes == 0) wrong = "is not aligned";
    if (wrong) violation("a bulk copy of %u bytes from %p to %p %s", copy.bytes, addressed(copy.from), addressed(copy.to), wrong);
    check_system(copy.barrier ? copy.from : copy.to, copy.bytes);
    copies.push_back(std::move(copy));
}

void BulkCopies::step() {
    for (size_t i = 0; i < copies.size();) {
        current = copies[i].owner; // in whose name a bad address is reported
        if (copies[i].delay-- || !advance(copies[i])) {
            i++;
            continue;
        }
        std::swap(copies[i], copies.back());
        copies.pop_back();
    }
    current = nullptr;
}

void BulkCopies::check_end() const {
    for (const BulkCopy &copy : copies) {
        if (copy.barrier) violation("the block ends before a bulk load of %u bytes has come", copy.bytes);
        if (copy.read.empty()) violation("the block ends before a bulk store of %u bytes has been read", copy.bytes);
    }
}

// mbarrier: the phase's parity, whether its one arrival has come, and the bytes that are still to come, which may come before
// they are expected.
namespace {

constexpr uint64_t PARITY = 1ull << 63, ARRIVED = 1ull << 62, INITIALISED = 0x2d5aull << 40, BYTES = 0xffffffff;

void check_mbarrier(const uint64_t *barrier) {
    bool is_one = uintptr_t(barrier) % 8 == 0 && (*barrier & ~(PARITY | ARRIVED | BYTES)) == INITIALISED;
    if (!is_one) violation("an mbarrier that is not initialised, at %p", addressed(barrier));
}

void expect_more(uint64_t *barrier, int bytes) {
    *barrier = (*barrier & ~BYTES) | uint32_t(uint32_t(*barrier) + uint32_t(bytes));
    if (*barrier & ARRIVED && (*barrier & BYTES) == 0) *barrier = (*barrier ^ PARITY) & ~ARRIVED;
    progress++;
}

} // namespace

bool BulkCopies::advance(BulkCopy &copy) {
    progress++;
    if (copy.barrier) {
        memcpy(copy.to, copy.from, copy.bytes);
        expect_more(copy.barrier, -int(copy.bytes));
        return true;
    }
    BulkGroups &groups = copy.owner->bulk;
    unsigned slot = copy.group % BulkGroups::KEPT;
    if (copy.read.empty()) {
        copy.read.assign(copy.from, copy.from + copy.bytes);
        groups.unread[slot]--;
        copy.delay = random_delay();
        return false;
    }
    memcpy(copy.to, copy.read.data(), copy.bytes);
    groups.unwritten[slot]--;
    return true;
}

void bulk_load(void *shared, const void *global, unsigned bytes, uint64_t *barrier) {
    check_mbarrier(barrier);
    char *to = static_cast<char *>(shared);
    const char *from = static_cast<const char *>(global);
    current->block.copies.add({to, from, bytes, barrier, current, 0, random_delay(), {}});
}

void bulk_store(void *global, const void *shared, unsigned bytes) {
    BulkGroups &groups = current->bulk;
    unsigned slot = groups.newest % BulkGroups::KEPT;
    char *to = static_cast<char *>(global);
    const char *from = static_cast<const char *>(shared);
    current->block.copies.add({to, from, bytes, nullptr, current, groups.newest, random_delay(), {}});
    groups.unread[slot]++;
    groups.unwritten[slot]++;
}

void bulk_commit() {
    BulkGroups &groups = current->bulk;
    groups.newest++;
    while (groups.unwritten[groups.newest % BulkGroups::KEPT]) yield(); // so many are not told apart
}

void bulk_wait(unsigned allowed, Bulk how) {
    BulkGroups &groups = current->bulk;
    const unsigned *open = how == Bulk::READ ? groups.unread : groups.unwritten;
    for (unsigned age = allowed + 1; age < BulkGroups::KEPT; age++)
        while (open[(groups.newest - age) % BulkGroups::KEPT]) yield();
}

void mbarrier_init(uint64_t *barrier, unsigned arrivals) {
    if (arrivals != 1) violation("an mbarrier of %u arrivals: only those of one are emulated", arrivals);
    *barrier = INITIALISED;
}

void mbarrier_expect(uint64_t *barrier, unsigned bytes) {
    check_mbarrier(barrier);
    if (*barrier & ARRIVED) violation("a second arrival in one phase of an mbarrier");
    *barrier |= ARRIVED;
    expect_more(barrier, int(bytes));
}

bool mbarrier_has_passed(uint64_t *barrier, unsigned parity) {
    check_mbarrier(barrier);
    return (*barrier & PARITY ? 1u : 0u) != parity;
}

} // namespace emulator
