// The engine's side of the KV store: which parts a model's state has, how to copy them out of a
// slot and back in, and what makes a stored state valid. Everything here runs on the thread that
// decodes.
#pragma once

#include "kv_buffers.h"
#include "kv_format.h"
#include "kv_store.h"

#include "common.h"
#include "llama.h"

#include <string>
#include <vector>

struct common_speculative;

namespace llama_ai {

// How a model's state is stored.
struct kv_traits {
    std::string refused;    // why this configuration cannot be stored; empty when it can
    bool segments = true;   // it has attention cells, cut by position
    bool partial = false;   // it has more: recurrent state or sliding windows, not to be cut
    bool whole = false;     // a kind of memory that we do not cut: all of it is one partial state
    bool recurrent = false; // the state of a position cannot be had from that of a later one
    int32_t window = 0;     // tokens of the sliding window, 0 without
};

// A part of a slot's state, copied.
struct kv_copy {
    std::vector<kv_section> sections; // type and size
    std::vector<kv_buffer> data;
    size_t bytes() const;
};

class kv_state {
public:
    kv_state(const common_params & params, llama_context * target, llama_context * draft,
             common_speculative * speculative);

    kv_traits traits;
    kv_key fingerprint; // empty when refused
    std::string model;  // the file's name

    // What may be asked of a store about these tokens. They outlive it.
    kv_query query(const std::vector<int32_t> & tokens) const;

    // How many tokens of the slot are in every context, 0 when it is empty.
    int32_t stored_tokens(int slot_id) const;
    // The lowest position that the slot still has everywhere, -1 when it is empty.
    int32_t lowest_position(int slot_id) const;

    // Copies the cells of [begin, end). Empty when the pool has no room; `failed` when the engine
    // gave something else than it had announced.
    kv_copy copy_segment(int slot_id, int32_t begin, int32_t end, kv_buffer_pool & pool,
                         int wait_ms);
    kv_copy copy_partial(int slot_id, kv_buffer_pool & pool, int wait_ms);
    kv_copy copy_checkpoint(const common_prompt_checkpoint & checkpoint, kv_buffer_pool & pool,
                            int wait_ms);
    // Bytes of `count` cells from `begin` on.
    size_t segment_bytes(int slot_id, int32_t begin, int32_t end);

    void clear(int slot_id);
    // Removes the cells from `begin` on. False when the engine cannot.
    bool cut(int slot_id, int32_t begin);
    // Puts a segment after what the slot holds, or a partial state into it. `bytes` is a checked
    // file. False when the engine does not take it; the slot must then be cleared.
    bool restore(int slot_id, const kv_header & header, const uint8_t * bytes);

private:
    llama_context * target;
    llama_context * draft;
    common_speculative * speculative;
    bool whole_windows;

    kv_copy copy(int slot_id, llama_state_seq_flags flags, kv_buffer_pool & pool, int wait_ms);
    llama_state_seq_flags partial_flags() const;
};

} // namespace llama_ai
