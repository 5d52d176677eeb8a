// The tiers of the KV cache: hot is the slot, warm the engine's RAM cache, cold the KV store. Sets
// the kv_* hooks, and says what the routes say.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace llama_ai {

struct kv_options {
    bool disk = false; // the cold tier
    std::string dir;
    uint64_t max_bytes = 20ull << 30;
    int64_t max_age_s = 30 * 86400;
    int system_prompts = 8;
};

// From our own flags, as own_flags.h gives them. Throws std::invalid_argument.
kv_options kv_options_from(const std::map<std::string, std::string> & flags);

// Before the server starts.
void install_kv(kv_options options);

// What GET /kv-cache says, one JSON object, and what is appended to /metrics. Any thread.
std::string kv_status_json();
std::string kv_metrics_text();

// Drops what the store holds: of this model, or of all. Returns the number of files, -1 when the
// cold tier is off.
int64_t kv_clear(bool all);

} // namespace llama_ai
