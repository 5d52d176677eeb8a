// Where the beginning of a prompt is already, and if nowhere, why.
#pragma once

#include "kv_state.h"
#include "kv_store.h"

#include "server-task.h"

#include <string>
#include <vector>

namespace llama_ai {

// The tokens before the first image or sound.
std::vector<int32_t> text_prefix(const server_tokens & tokens);

struct kv_choice {
    int32_t slot_tokens = 0; // that upstream will be able to go on from in the slot
    int32_t ram_tokens = 0;  // and in the RAM cache's entry that it will pick, 0 for none
};

// Predicts upstream's own decisions for `task`. `lowest` is the slot's lowest position.
kv_choice choose(const kv_traits & traits, const server_prompt & slot, int32_t lowest,
                 const server_prompt_cache & ram, const server_task & task);

// Why nothing was found, for the log.
std::string miss_reason(const kv_plan & plan, size_t prompt_tokens, bool partial);

// A hint for the log when a stored prompt has the same JSON objects (tool definitions), written in
// another way; else empty. `found`: the tokens that will be reused.
std::string rewritten_hint(const kv_plan & plan, const std::vector<int32_t> & prompt,
                           int32_t system_end, int32_t found, const kv_key & fingerprint,
                           kv_store & store, llama_context * context);

} // namespace llama_ai
