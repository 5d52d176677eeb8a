#include "kv_read_ahead.h"

#include <algorithm>

namespace llama_ai {

static const uint64_t most_threads = 3; // a disk is fast only when it has several requests
static const size_t ahead = 2;          // files: there are buffers for one more, which is copied

kv_read_ahead::kv_read_ahead(const std::vector<kv_entry_ptr> & entries, kv_store & store,
                             kv_buffer_pool & pool)
    : store(store), pool(pool) {
    uint64_t bytes = 0;
    for (const auto & entry : entries) {
        items.emplace_back();
        items.back().entry = entry;
        bytes += entry->header.file_bytes;
    }
    if (entries.empty()) {
        return;
    }
    const auto count = std::clamp<uint64_t>(bytes / kv_checksum_bytes, 1, most_threads);
    for (uint64_t i = 0; i < count; i++) {
        threads.emplace_back([this] { run(); });
    }
}

kv_read_ahead::~kv_read_ahead() {
    {
        lock guard(mutex);
        ending = true;
        for (auto & file : items) {
            if (file.done) {
                file.data = nullptr; // somebody may wait for the memory
            }
        }
    }
    changed.notify_all();
    for (auto & thread : threads) {
        thread.join();
    }
}

kv_read_ahead::result kv_read_ahead::take(size_t index) {
    lock guard(mutex);
    auto & file = items[index];
    while (!file.done) {
        if (opened > index && file.begun < file.reader.block_count()) {
            read_block(file, guard);
        } else {
            changed.wait(guard);
        }
    }
    taken = index + 1;
    result found;
    found.status = file.status;
    found.header = file.reader.header();
    found.data = std::move(file.data);
    guard.unlock();
    changed.notify_all();
    return found;
}

// Memory is taken in the order of the files, so that a later one never waits for an earlier.
void kv_read_ahead::open(lock & guard) {
    auto & file = items[opened];
    opening = true;
    guard.unlock();
    kv_buffer data;
    const auto status = store.open(
        *file.entry,
        [&](size_t size) {
            data = pool.acquire(size, 10000);
            return data.get();
        },
        file.reader);
    guard.lock();
    opening = false;
    opened++;
    file.status = status;
    file.data = std::move(data);
    file.left = status == kv_read::ok ? file.reader.block_count() : 0;
    file.done = file.left == 0;
    changed.notify_all();
}

void kv_read_ahead::read_block(item & file, lock & guard) {
    const size_t index = file.begun++;
    guard.unlock();
    file.reader.read_block(index);
    guard.lock();
    if (--file.left == 0) {
        file.status = file.reader.finish();
        file.done = true;
        changed.notify_all();
    }
}

void kv_read_ahead::run() {
    lock guard(mutex);
    while (!ending) {
        item * next = nullptr;
        for (size_t i = taken; i < opened && !next; i++) {
            next = items[i].begun < items[i].reader.block_count() ? &items[i] : nullptr;
        }
        if (next) {
            read_block(*next, guard);
        } else if (!opening && opened < std::min(items.size(), taken + ahead)) {
            open(guard);
        } else if (opened == items.size()) {
            return;
        } else {
            changed.wait(guard);
        }
    }
}

} // namespace llama_ai
