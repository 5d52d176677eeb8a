#include "expert_pool.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace llama_ai {

static const size_t huge_page = 2u << 20;

expert_pool::expert_pool(const std::vector<uint64_t> & slot_bytes,
                         const std::vector<int> & n_slots) {
    classes.resize(slot_bytes.size());
    for (size_t i = 0; i < classes.size(); i++) {
        auto & one = classes[i];
        one.slot_bytes = slot_bytes[i];
        one.n_slots = n_slots[i];
        // Reads past the page cache into huge pages are two to three times as fast as into small
        // ones: the disk's requests are not cut up. So the memory begins at a huge page.
        const size_t bytes = one.slot_bytes * (size_t) one.n_slots;
        const size_t align = bytes >= huge_page ? huge_page : 0;
        void * area = mmap(nullptr, bytes + align, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED) {
            release();
            throw std::bad_alloc();
        }
        one.area = (char *) area;
        one.area_bytes = bytes + align;
        one.base = one.area;
        if (align > 0) {
            one.base = (char *) (((uintptr_t) area + align - 1) / align * align);
#if defined(MADV_HUGEPAGE)
            madvise(one.base, bytes, MADV_HUGEPAGE);
#endif
        }
        for (int slot = one.n_slots - 1; slot >= 0; slot--) {
            one.free.push_back(slot);
        }
    }
}

expert_pool::~expert_pool() {
    release();
}

void expert_pool::release() {
    for (auto & one : classes) {
        if (one.area) {
            munmap(one.area, one.area_bytes);
        }
    }
    classes.clear();
}

int expert_pool::take(int size_class) {
    auto & free = classes[size_class].free;
    if (free.empty()) {
        return -1;
    }
    const int slot = free.back();
    free.pop_back();
    return slot;
}

void expert_pool::give_back(int size_class, int slot) {
    classes[size_class].free.push_back(slot);
}

uint64_t expert_pool::bytes() const {
    uint64_t total = 0;
    for (const auto & one : classes) {
        total += (uint64_t) one.slot_bytes * (uint64_t) one.n_slots;
    }
    return total;
}

void expert_pool::shrink(int size_class, int n_slots) {
    auto & one = classes[size_class];
    if (n_slots >= one.n_slots) {
        return;
    }
    one.free.erase(
        std::remove_if(one.free.begin(), one.free.end(), [&](int slot) { return slot >= n_slots; }),
        one.free.end());
    one.n_slots = n_slots;
    const size_t page = (size_t) sysconf(_SC_PAGESIZE);
    const size_t keep = (size_t) (one.base - one.area) + one.slot_bytes * (size_t) n_slots;
    const size_t rounded = (keep + page - 1) / page * page;
    if (rounded < one.area_bytes) {
        munmap(one.area + rounded, one.area_bytes - rounded);
        one.area_bytes = rounded;
    }
}

} // namespace llama_ai
