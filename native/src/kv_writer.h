// The one thread that writes to the KV store. Its queue is bounded by the memory of the buffers
// that its jobs hold: who finds none does not queue.
#pragma once

#include "kv_buffers.h"
#include "kv_store.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace llama_ai {

struct kv_job {
    kv_entry_ptr entry;                 // announced; null for a job that only touches and drops
    std::vector<kv_buffer> data;        // one per section
    std::vector<kv_entry_ptr> touch;    // used: see kv_store::touch
    std::vector<kv_entry_ptr> replaces; // dropped once the entry is durable
};

class kv_writer {
public:
    // `failed` is called once, on the writer's thread, when the disk fails; nothing is written
    // from then on.
    kv_writer(kv_store & store, std::function<void(const std::string &)> failed,
              std::function<void()> first);
    // Writes what is queued, then ends.
    ~kv_writer();

    void submit(kv_job job);
    // Waits until everything is written. False when that takes longer.
    bool drain(int timeout_ms);
    bool broken() const;
    size_t queued() const;
    // Processor time that its thread has used.
    uint64_t cpu_us() const {
        return used_us;
    }

private:
    void run();
    void work(kv_job & job);

    kv_store & store;
    std::function<void(const std::string &)> failed;
    std::function<void()> first;
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::deque<kv_job> queue;
    bool busy = false;
    bool ending = false;
    bool is_broken = false;
    std::atomic<uint64_t> used_us{0};
    std::thread thread; // the last member: it uses all the others
};

} // namespace llama_ai
