// Where upstream calls us. Upstream's sources include this header and call the functions below,
// one inserted line each (native/patches). Every pointer is null until somebody sets it, and a
// null hook does nothing: an unhooked build behaves as upstream does, and upstream's other
// programs link without any of our objects.
//
// Hooks are set once, before the server starts, and never changed afterwards; so they are read
// without a lock.
#pragma once

#include <cstdint>
#include <string>

struct common_params;
struct common_speculative;
struct llama_context;
struct server_http_context;
struct server_prompt;
struct server_prompt_cache;
struct server_routes;
struct server_task;

namespace llama_ai {

struct hook_table {
    // Before upstream registers its handlers: register routes of our own on `http`, or put
    // another handler (a wrapper) into `handlers`, all of whose members are public. Runs on the
    // main thread, in router mode too. Our handlers must not throw.
    void (*routes)(server_http_context & http, server_routes & handlers,
                   const common_params & params) = nullptr;

    // The life of a conversation's KV state. All run on the thread that decodes.
    //
    // The model is loaded (or loaded again after sleep) and the RAM prompt cache exists; not
    // called with `--cache-ram 0`. `draft` and `speculative` are null without speculation.
    void (*kv_attach)(server_prompt_cache & cache, const common_params & params,
                      llama_context * target, llama_context * draft,
                      common_speculative * speculative) = nullptr;
    // A slot was chosen for `task`, which need not be a completion. True asks the RAM cache even
    // where upstream would go on with what the slot holds (it still asks for completions only).
    bool (*kv_want)(int slot_id, const server_prompt & slot, const server_task & task) = nullptr;
    // The RAM cache is about to be searched for the task's prompt, and holds what the slot held:
    // put a better state into the slot.
    void (*kv_promote)(int slot_id, server_prompt & slot, const server_task & task) = nullptr;
    // The slot has nothing to do and may lose its state soon: all slots are idle, or the server
    // stops.
    void (*kv_snapshot)(int slot_id, const server_prompt & slot) = nullptr;
    // The slot's prompt was put into a batch up to `tokens`: true ends the batch for this slot
    // here.
    bool (*kv_split)(int slot_id, int tokens) = nullptr;
    // A batch was decoded. `task` is what the slot works on, null when it is idle.
    void (*kv_progress)(int slot_id, const server_prompt & slot,
                        const server_task * task) = nullptr;
    // A context checkpoint was taken, the last in `slot.checkpoints`. `user_start`: it lies at
    // the start of a user message, so what comes before it is a reusable prefix.
    void (*kv_checkpoint)(int slot_id, const server_prompt & slot, bool user_start) = nullptr;
    // The contexts are about to go away. May be called more than once, and before kv_attach.
    void (*kv_detach)() = nullptr;

    // A slot begins with a request, and ends one that went well.
    void (*request_started)(int slot_id) = nullptr;
    void (*request_finished)(int slot_id) = nullptr;
    // A batch failed; `text` is what upstream would tell the clients, empty when it will try again.
    std::string (*decode_error)(const std::string & text) = nullptr;
};

// One table for the whole process, shared by the executable and upstream's libraries.
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
inline hook_table hooks;

inline void routes(server_http_context & http, server_routes & handlers,
                   const common_params & params) {
    if (hooks.routes) {
        hooks.routes(http, handlers, params);
    }
}

inline void kv_attach(server_prompt_cache & cache, const common_params & params,
                      llama_context * target, llama_context * draft,
                      common_speculative * speculative) {
    if (hooks.kv_attach) {
        hooks.kv_attach(cache, params, target, draft, speculative);
    }
}

inline bool kv_want(int slot_id, const server_prompt & slot, const server_task & task) {
    return hooks.kv_want && hooks.kv_want(slot_id, slot, task);
}

inline void kv_promote(int slot_id, server_prompt & slot, const server_task & task) {
    if (hooks.kv_promote) {
        hooks.kv_promote(slot_id, slot, task);
    }
}

inline void kv_snapshot(int slot_id, const server_prompt & slot) {
    if (hooks.kv_snapshot) {
        hooks.kv_snapshot(slot_id, slot);
    }
}

inline bool kv_split(int slot_id, int tokens) {
    return hooks.kv_split && hooks.kv_split(slot_id, tokens);
}

inline void kv_progress(int slot_id, const server_prompt & slot, const server_task * task) {
    if (hooks.kv_progress) {
        hooks.kv_progress(slot_id, slot, task);
    }
}

inline void kv_checkpoint(int slot_id, const server_prompt & slot, bool user_start) {
    if (hooks.kv_checkpoint) {
        hooks.kv_checkpoint(slot_id, slot, user_start);
    }
}

inline void kv_detach() {
    if (hooks.kv_detach) {
        hooks.kv_detach();
    }
}

inline void request_started(int slot_id) {
    if (hooks.request_started) {
        hooks.request_started(slot_id);
    }
}

inline void request_finished(int slot_id) {
    if (hooks.request_finished) {
        hooks.request_finished(slot_id);
    }
}

inline std::string decode_error(const std::string & text) {
    return hooks.decode_error ? hooks.decode_error(text) : text;
}

} // namespace llama_ai
