#include "kv_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>

namespace llama_ai {

static const size_t granule = 2 << 20; // a huge page

static uint8_t * map_memory(size_t size) {
    void * memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return nullptr;
    }
    auto * bytes = static_cast<uint8_t *>(memory);
#ifdef MADV_HUGEPAGE
    madvise(memory, size, MADV_HUGEPAGE);
#endif
    for (size_t at = 0; at < size; at += 4096) {
        bytes[at] = 0;
    }
    return bytes;
}

kv_buffer_pool::kv_buffer_pool(size_t limit_bytes) : limit(limit_bytes) {}

kv_buffer_pool::~kv_buffer_pool() {
    for (const auto & block : idle) {
        munmap(block.data, block.size);
    }
}

kv_buffer kv_buffer_pool::lend(block taken) {
    on_loan += taken.size;
    return kv_buffer(taken.data, [this, taken](uint8_t *) {
        std::lock_guard<std::mutex> guard(mutex);
        idle.push_back(taken);
        on_loan -= taken.size;
        returned.notify_all();
    });
}

kv_buffer kv_buffer_pool::acquire(size_t size, int wait_ms) {
    size = std::max(granule, (size + granule - 1) / granule * granule);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    std::unique_lock<std::mutex> guard(mutex);
    while (true) {
        // The smallest that fits, unless it would be wasted on so little.
        auto best = idle.end();
        for (auto it = idle.begin(); it != idle.end(); ++it) {
            if (it->size >= size && (best == idle.end() || it->size < best->size)) {
                best = it;
            }
        }
        if (best != idle.end()) {
            const block taken = *best;
            idle.erase(best);
            return lend(taken);
        }
        while (!idle.empty() && held + size > limit) {
            munmap(idle.back().data, idle.back().size);
            held -= idle.back().size;
            idle.pop_back();
        }
        if (held + size <= limit || on_loan == 0) {
            uint8_t * memory = map_memory(size);
            if (!memory) {
                return nullptr;
            }
            held += size;
            return lend({memory, size});
        }
        if (wait_ms <= 0 || returned.wait_until(guard, until) == std::cv_status::timeout) {
            return nullptr;
        }
    }
}

void kv_buffer_pool::prepare(size_t count, size_t size) {
    size = std::max(granule, (size + granule - 1) / granule * granule);
    for (size_t i = 0; i < count; i++) {
        {
            std::lock_guard<std::mutex> guard(mutex);
            if (held + size > limit) {
                return;
            }
            held += size;
        }
        uint8_t * memory = map_memory(size);
        std::lock_guard<std::mutex> guard(mutex);
        if (!memory) {
            held -= size;
            return;
        }
        idle.push_back({memory, size});
    }
}

size_t kv_buffer_pool::held_bytes() const {
    std::lock_guard<std::mutex> guard(mutex);
    return held;
}

} // namespace llama_ai
