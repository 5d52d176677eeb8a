// Reads files of the KV store one after the other, a little ahead of who takes them. All threads
// work on the same file, block by block, so that the first one is there soon.
#pragma once

#include "kv_buffers.h"
#include "kv_reader.h"
#include "kv_store.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace llama_ai {

class kv_read_ahead {
public:
    struct result {
        kv_read status = kv_read::failed;
        kv_header header;
        kv_buffer data; // the file, with ok
    };

    // Begins to read.
    kv_read_ahead(const std::vector<kv_entry_ptr> & entries, kv_store & store,
                  kv_buffer_pool & pool);
    // What is being read is finished, the rest is not begun.
    ~kv_read_ahead();
    kv_read_ahead(const kv_read_ahead &) = delete;
    kv_read_ahead & operator=(const kv_read_ahead &) = delete;

    // The files one after the other: `index` counts up from 0. Helps with reading.
    result take(size_t index);

private:
    struct item {
        kv_entry_ptr entry;
        kv_buffer data;
        kv_file_reader reader;
        kv_read status = kv_read::failed;
        size_t begun = 0; // blocks
        size_t left = 0;  // blocks
        bool done = false;
    };
    using lock = std::unique_lock<std::mutex>;

    void run();
    void open(lock & guard);
    void read_block(item & file, lock & guard);

    kv_store & store;
    kv_buffer_pool & pool;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<item> items;
    size_t opened = 0; // so many are open, or were
    bool opening = false;
    size_t taken = 0;
    bool ending = false;
    std::vector<std::thread> threads; // the last member: they use all the others
};

} // namespace llama_ai
