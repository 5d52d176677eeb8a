// The cold tier of one loaded model: for each request, where the longest usable beginning of its
// prompt is, and the way from the disk into the slot.
#pragma once

#include "kv_choice.h"
#include "kv_snapshots.h"
#include "kv_tiers.h"

#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace llama_ai {

class kv_cold {
public:
    // `params` are the server's own, and live as long as this does. Throws std::runtime_error when
    // this configuration or the directory cannot be used.
    kv_cold(const kv_options & options, server_prompt_cache & ram, const common_params & params,
            llama_context * target, llama_context * draft, common_speculative * speculative);
    // Waits for the writer.
    ~kv_cold();

    // The hooks of the same names.
    bool want(int slot_id, const server_prompt & slot, const server_task & task);
    void promote(int slot_id, server_prompt & slot, const server_task & task);
    bool split(int slot_id, int tokens) const;
    void progress(int slot_id, const server_prompt & slot, const server_task * task);
    void checkpoint(int slot_id, const server_prompt & slot, bool user_start);
    void snapshot(int slot_id, const server_prompt & slot);

    // From other threads.
    nlohmann::json status();
    int64_t clear(bool all);

private:
    struct promotion {
        bool wanted = false;
        kv_plan plan;
    };

    bool usual_adapters(const server_task & task) const;
    kv_query query_for(const server_task & task, const std::vector<int32_t> & prompt) const;
    void say_where(int slot_id, const server_task & task, const std::vector<int32_t> & prompt,
                   const kv_plan & plan, const kv_choice & choice);

    server_prompt_cache & ram;
    const common_params & params;
    llama_context * target;
    kv_state state;
    const std::vector<float> adapter_scales; // that the fingerprint knows
    kv_store store;
    kv_buffer_pool pool;
    std::vector<kv_slot> slots;
    std::vector<promotion> promotions; // of the slots
    struct {
        std::atomic<uint64_t> hot{0}, warm{0}, cold{0}, missed{0};
        std::atomic<uint64_t> restored_tokens{0}, restored_us{0};
    } counters;
    kv_writer writer; // its thread uses the others
    kv_snapshots snapshots;
};

} // namespace llama_ai
