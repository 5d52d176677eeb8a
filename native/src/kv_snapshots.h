// Which parts of a slot's state are still to be stored, and when they are: long prompts while they
// are evaluated, the rest when the slot is done. Runs on the thread that decodes, which pays for
// one copy of each part; the writer does the rest.
#pragma once

#include "kv_state.h"
#include "kv_store.h"
#include "kv_writer.h"

#include "server-task.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llama_ai {

constexpr int32_t kv_min_tokens = kv_block_tokens; // shorter prompts are not worth a file
constexpr int32_t kv_min_new_tokens = 16;          // nor is so little more of a conversation
constexpr size_t kv_piece_bytes = 24 << 20;        // cells are copied in pieces of about this size

// What we know about a slot.
struct kv_slot {
    bool dirty = false;      // it has worked since it was last stored as a whole
    bool known = false;      // `covered` was looked up since then
    int32_t covered = 0;     // tokens whose cells are stored or queued
    int32_t look_again = 0;  // with so many tokens there may be something more to store
    int32_t system_end = -1; // where the system prompt of the task ends, -1 without
    int32_t split_at = -1;   // where the task's prompt leaves what is stored, -1 for nowhere
    std::vector<kv_entry_ptr> partials; // of this conversation, the oldest first
    std::vector<kv_entry_ptr> used;     // files that the last restore used
};

struct kv_copy_counters {
    std::atomic<uint64_t> us{0}, bytes{0};
    std::atomic<uint64_t> longest_us{0}; // of one copy: what a slot that generates waits for
    std::atomic<uint64_t> postponed{0};  // copies that found no room, and were tried again
};

class kv_snapshots {
public:
    kv_snapshots(kv_state & state, kv_store & store, kv_buffer_pool & pool, kv_writer & writer)
        : state(state), store(store), pool(pool), writer(writer) {}

    // A task with this prompt begins in a slot that holds these tokens, and was finished.
    // `system_end` as in kv_slot.
    void begin(kv_slot & memo, const server_tokens & held, const server_tokens & prompt,
               int32_t system_end);
    // The task's beginning was restored from these files.
    void restored(kv_slot & memo, const std::vector<kv_entry_ptr> & files);

    // After each batch. `task` is null when the slot is idle.
    void progress(kv_slot & memo, int slot_id, const server_prompt & slot,
                  const server_task * task);

    // A context checkpoint was taken.
    void checkpoint(kv_slot & memo, int slot_id, const server_prompt & slot, bool user_start);

    // All that is not stored yet. Where the pool has no room, the slot stays dirty.
    void finish(kv_slot & memo, int slot_id, const server_prompt & slot, int wait_ms);

    // From now on states may not belong to their tokens: nothing more is stored. Told once.
    void stop(const std::string & why);
    bool may_store() const {
        return !stopped && !writer.broken();
    }

    kv_copy_counters counters;

private:
    using clock = std::chrono::steady_clock;

    void count_copy(const kv_copy & copy, clock::time_point start);
    kv_header header_for(kv_kind kind, int32_t begin, int32_t end, uint32_t flags,
                         const std::vector<kv_key> & keys, const kv_copy & copy) const;
    bool submit(kv_header header, const std::vector<int32_t> & tokens, kv_copy & copy,
                const kv_slot & memo, std::vector<kv_entry_ptr> replaces, kv_entry_ptr & entry);
    bool store_segments(kv_slot & memo, int slot_id, const std::vector<int32_t> & tokens,
                        int32_t count, bool rest, int wait_ms);
    void store_partial(kv_slot & memo, const std::vector<int32_t> & tokens, int32_t end,
                       uint32_t flags, const std::function<kv_copy()> & take);

    kv_state & state;
    kv_store & store;
    kv_buffer_pool & pool;
    kv_writer & writer;
    size_t token_bytes = 0; // of a cell, 0 until it was measured
    std::atomic<bool> stopped{false};
    bool answers_stay = false; // the last turn began with all of the answer before it
};

} // namespace llama_ai
