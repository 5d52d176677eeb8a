// Puts stored state into a slot.
#pragma once

#include "kv_state.h"
#include "kv_store.h"

#include <string>
#include <vector>

namespace llama_ai {

struct kv_restored {
    int32_t tokens = 0; // the slot holds so many; 0: it must be cleared
    uint64_t bytes = 0; // read
    std::vector<kv_entry_ptr> used;
    std::string problem; // what went wrong on the way, empty for nothing
    // The partial state, for tail_checkpoint; empty sections without.
    std::vector<uint8_t> target, draft, speculative;
};

// The slot is empty. Files are read and checked by several threads ahead of the engine, which gets
// nothing that is not whole and exactly of these tokens. A bad file is set aside, and what comes
// before it is used where the model allows that.
kv_restored restore(int slot_id, const kv_plan & plan, const std::vector<int32_t> & prompt,
                    kv_state & state, kv_store & store, kv_buffer_pool & pool);

// Upstream goes on from a sliding-window state only if a checkpoint says that it may: it wants one
// token more than the window needs, which a stored state does not have.
common_prompt_checkpoint tail_checkpoint(const kv_restored & restored, int32_t window);

} // namespace llama_ai
