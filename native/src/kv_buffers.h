// Memory for copies of state: taken from the system once, its pages touched once, used again and
// again. A copy into fresh memory takes five times as long, and the thread that decodes makes it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace llama_ai {

// A buffer on loan; it goes back when the last copy of the pointer is gone.
using kv_buffer = std::shared_ptr<uint8_t>;

class kv_buffer_pool {
public:
    // `limit_bytes` bounds what is on loan and kept together. One request larger than that is still
    // served, when nothing else is on loan.
    explicit kv_buffer_pool(size_t limit_bytes);
    ~kv_buffer_pool();
    kv_buffer_pool(const kv_buffer_pool &) = delete;
    kv_buffer_pool & operator=(const kv_buffer_pool &) = delete;

    // Null when there is no room now, or after waiting for it. The pool outlives its buffers.
    kv_buffer acquire(size_t size, int wait_ms = 0);

    // Makes `count` buffers of `size` bytes ready, as far as the limit goes.
    void prepare(size_t count, size_t size);

    size_t held_bytes() const;

private:
    struct block {
        uint8_t * data;
        size_t size;
    };

    kv_buffer lend(block taken);

    const size_t limit;
    mutable std::mutex mutex;
    std::condition_variable returned;
    std::vector<block> idle;
    size_t held = 0; // idle and on loan
    size_t on_loan = 0;
};

} // namespace llama_ai
