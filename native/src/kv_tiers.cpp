#include "kv_tiers.h"

#include "hooks.h"
#include "kv_cold.h"

#include "log.h"
#include "server-task.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <mutex>

namespace llama_ai {

namespace {

kv_options options;
std::mutex active_mutex; // the routes come from other threads
std::unique_ptr<kv_cold> active;
std::string off_reason = "no --kv-dir, or --no-kv-disk";

void attach(server_prompt_cache & cache, const common_params & params, llama_context * target,
            llama_context * draft, common_speculative * speculative) {
    std::lock_guard<std::mutex> guard(active_mutex);
    active.reset();
    if (!options.disk) {
        return;
    }
    try {
        active = std::make_unique<kv_cold>(options, cache, params, target, draft, speculative);
    } catch (const std::exception & error) {
        off_reason = error.what();
        LOG_WRN("kv-cache: off, nothing is kept on disk: %s\n", error.what());
    }
}

void detach() {
    std::unique_ptr<kv_cold> ending; // it waits for the disk, and nobody should wait for that
    {
        std::lock_guard<std::mutex> guard(active_mutex);
        if (active) {
            off_reason = "the model is not loaded";
        }
        ending = std::move(active);
    }
}

} // namespace

void install_kv(kv_options given) {
    options = std::move(given);
    hooks.kv_attach = attach;
    hooks.kv_detach = detach;
    hooks.kv_want = [](int slot_id, const server_prompt & slot, const server_task & task) {
        return active && active->want(slot_id, slot, task);
    };
    hooks.kv_promote = [](int slot_id, server_prompt & slot, const server_task & task) {
        if (active) {
            active->promote(slot_id, slot, task);
        }
    };
    hooks.kv_split = [](int slot_id, int tokens) {
        return active && active->split(slot_id, tokens);
    };
    hooks.kv_progress = [](int slot_id, const server_prompt & slot, const server_task * task) {
        if (active) {
            active->progress(slot_id, slot, task);
        }
    };
    hooks.kv_snapshot = [](int slot_id, const server_prompt & slot) {
        if (active) {
            active->snapshot(slot_id, slot);
        }
    };
    hooks.kv_checkpoint = [](int slot_id, const server_prompt & slot, bool user_start) {
        if (active) {
            active->checkpoint(slot_id, slot, user_start);
        }
    };
}

std::string kv_status_json() {
    std::lock_guard<std::mutex> guard(active_mutex);
    nlohmann::json status =
        active ? active->status() : nlohmann::json{{"enabled", false}, {"reason", off_reason}};
    status["schema"] = "llama-ai.kv-cache/1";
    return status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int64_t kv_clear(bool all) {
    std::lock_guard<std::mutex> guard(active_mutex);
    return active ? active->clear(all) : -1;
}

} // namespace llama_ai
