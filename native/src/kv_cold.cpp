#include "kv_cold.h"

#include "kv_restore.h"

#include "log.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <stdexcept>

namespace llama_ai {

using clock = std::chrono::steady_clock;

static const size_t pool_bytes = 256 << 20;
static const int stop_wait_ms = 30000;

static double ms_since(clock::time_point start) {
    return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

static std::vector<float> scales_of(const common_params & params) {
    std::vector<float> scales;
    for (const auto & adapter : params.lora_adapters) {
        scales.push_back(adapter.scale);
    }
    return scales;
}

static int32_t system_end(const server_task & task) {
    for (const auto & span : task.params.message_spans.spans) {
        if (span.role == COMMON_CHAT_ROLE_USER) {
            return (int32_t) span.pos;
        }
    }
    return -1;
}

kv_cold::kv_cold(const kv_options & options, server_prompt_cache & ram,
                 const common_params & params, llama_context * target, llama_context * draft,
                 common_speculative * speculative)
    : ram(ram), params(params), target(target), state(params, target, draft, speculative),
      adapter_scales(scales_of(params)),
      store({options.dir, options.max_bytes, options.max_age_s, options.system_prompts}),
      pool(pool_bytes), slots((size_t) params.n_parallel), promotions(slots.size()),
      writer(
          store,
          [](const std::string & why) {
              LOG_WRN("kv-cache: writing failed (%s); nothing more is stored on disk\n",
                      why.c_str());
          },
          [this] { pool.prepare(3, kv_piece_bytes + kv_piece_bytes / 4); }),
      snapshots(state, store, pool, writer) {
    if (!state.traits.refused.empty()) {
        throw std::runtime_error(state.traits.refused);
    }
    const auto stats = store.stats(state.fingerprint);
    LOG_INF("kv-cache: %s, %" PRIu64 " files (%" PRIu64 " of this model), %.1f MB of at most "
            "%.1f MB\n",
            store.dir().c_str(), stats.files, stats.own_files, (double) stats.bytes / 1e6,
            (double) stats.cap_bytes / 1e6);
}

kv_cold::~kv_cold() {
    if (!writer.drain(stop_wait_ms)) {
        LOG_WRN("kv-cache: the disk is slow; still writing %zu files\n", writer.queued());
    }
}

bool kv_cold::usual_adapters(const server_task & task) const {
    return task.params.lora.empty() && scales_of(params) == adapter_scales;
}

kv_query kv_cold::query_for(const server_task & task, const std::vector<int32_t> & prompt) const {
    kv_query query = state.query(prompt);
    query.max_end = (int32_t) task.tokens.size() - 1;
    return query;
}

bool kv_cold::want(int slot_id, const server_prompt & slot, const server_task & task) {
    auto & memo = slots.at((size_t) slot_id);
    auto & promotion = promotions.at((size_t) slot_id);
    snapshots.finish(memo, slot_id, slot, 20); // the task may change what the slot holds
    snapshots.begin(memo, slot.tokens, task.tokens, system_end(task));
    promotion = {};
    if (!usual_adapters(task)) {
        // Upstream may go on from the slot with other scales later, so this cannot be undone.
        snapshots.stop("the scales of the LoRA adapters were changed");
        return false;
    }
    if (task.type != SERVER_TASK_TYPE_COMPLETION || !task.params.cache_prompt) {
        return false;
    }
    if (task.params.n_cache_reuse > 0) {
        snapshots.stop("a request asked for n_cache_reuse");
    }

    const auto choice = choose(state.traits, slot, state.lowest_position(slot_id), ram, task);
    const auto prompt = text_prefix(task.tokens);
    store.refresh();
    const kv_plan plan = store.find(query_for(task, prompt));
    const int32_t elsewhere = std::max(choice.slot_tokens, choice.ram_tokens);
    // Two conversations begin alike, and of a state that cannot be cut nothing is stored near
    // the place where they part: where the chat template does not tell the system prompt's
    // end, this is how it is found. It will be stored there now, for the third.
    if (state.traits.partial &&
        plan.matched >= std::max(plan.tokens, elsewhere) + 2 * kv_min_new_tokens) {
        const int32_t at = plan.matched - plan.matched % kv_min_new_tokens;
        memo.split_at = at >= kv_min_tokens && at < (int32_t) prompt.size() ? at : -1;
    }
    if (plan.tokens >= kv_min_tokens && plan.tokens >= elsewhere + kv_min_new_tokens) {
        promotion = {true, plan};
        return true;
    }
    say_where(slot_id, task, prompt, plan, choice);
    return false;
}

void kv_cold::say_where(int slot_id, const server_task & task, const std::vector<int32_t> & prompt,
                        const kv_plan & plan, const kv_choice & choice) {
    const int total = (int) task.tokens.size();
    const int32_t found = std::max(choice.slot_tokens, choice.ram_tokens);
    const std::string hint =
        rewritten_hint(plan, prompt, system_end(task), found, state.fingerprint, store, target);
    if (found == 0) {
        counters.missed++;
        LOG_INF("kv-cache: slot %d: miss, 0 of %d tokens: %s%s\n", slot_id, total,
                miss_reason(plan, prompt.size(), state.traits.partial).c_str(), hint.c_str());
    } else if (choice.ram_tokens > choice.slot_tokens) {
        counters.warm++;
        LOG_INF("kv-cache: slot %d: warm, %d of %d tokens in the RAM cache%s\n", slot_id, found,
                total, hint.c_str());
    } else {
        counters.hot++;
        LOG_INF("kv-cache: slot %d: hot, %d of %d tokens in the slot%s\n", slot_id, found, total,
                hint.c_str());
    }
}

void kv_cold::promote(int slot_id, server_prompt & slot, const server_task & task) {
    auto & memo = slots.at((size_t) slot_id);
    auto & promotion = promotions.at((size_t) slot_id);
    if (!promotion.wanted) {
        return;
    }
    promotion.wanted = false;
    auto & plan = promotion.plan;
    const auto start = clock::now();
    const auto prompt = text_prefix(task.tokens);
    slot.clear();
    kv_restored result;
    std::string problems;
    for (int attempt = 0; attempt < 3 && plan.tokens >= kv_min_tokens; attempt++) {
        state.clear(slot_id);
        result = restore(slot_id, plan, prompt, state, store, pool);
        if (!result.problem.empty()) {
            problems += "; " + result.problem;
        }
        if (result.tokens > 0) {
            break;
        }
        // Without what was bad there may be another way.
        plan = store.find(query_for(task, prompt));
    }
    const double took_ms = ms_since(start);
    const int total = (int) task.tokens.size();
    if (result.tokens == 0) {
        state.clear(slot_id);
        counters.missed++;
        LOG_WRN("kv-cache: slot %d: miss, 0 of %d tokens%s\n", slot_id, total, problems.c_str());
        return;
    }
    slot.tokens = server_tokens(llama_tokens(prompt.begin(), prompt.begin() + result.tokens),
                                slot.tokens.has_mtmd);
    if (state.traits.window > 0 &&
        state.lowest_position(slot_id) >= std::max(0, result.tokens - state.traits.window)) {
        slot.checkpoints.push_back(tail_checkpoint(result, state.traits.window));
    }
    snapshots.restored(memo, result.used);
    kv_job job;
    job.touch = result.used;
    writer.submit(std::move(job));
    counters.cold++;
    counters.restored_tokens += (uint64_t) result.tokens;
    counters.restored_us += (uint64_t) (took_ms * 1000);
    const std::string hint = rewritten_hint(plan, prompt, memo.system_end, result.tokens,
                                            state.fingerprint, store, target);
    LOG_INF("kv-cache: slot %d: cold, %d of %d tokens restored from %zu files, %.1f MB in "
            "%.1f ms%s%s\n",
            slot_id, result.tokens, total, result.used.size(), (double) result.bytes / 1e6, took_ms,
            problems.c_str(), hint.c_str());
}

bool kv_cold::split(int slot_id, int tokens) const {
    return slots.at((size_t) slot_id).split_at == tokens;
}

void kv_cold::progress(int slot_id, const server_prompt & slot, const server_task * task) {
    snapshots.progress(slots.at((size_t) slot_id), slot_id, slot, task);
}

void kv_cold::checkpoint(int slot_id, const server_prompt & slot, bool user_start) {
    snapshots.checkpoint(slots.at((size_t) slot_id), slot_id, slot, user_start);
}

void kv_cold::snapshot(int slot_id, const server_prompt & slot) {
    snapshots.finish(slots.at((size_t) slot_id), slot_id, slot, 1000);
}

nlohmann::json kv_cold::status() {
    const auto stats = store.stats(state.fingerprint);
    const auto & copies = snapshots.counters;
    return {
        {"enabled", true},
        {"dir", store.dir()},
        {"writing", snapshots.may_store()},
        {"model", state.model},
        {"bytes", stats.bytes},
        {"files", stats.files},
        {"cap_bytes", stats.cap_bytes},
        {"model_bytes", stats.own_bytes},
        {"model_files", stats.own_files},
        {"system_prompts", stats.system_prompts},
        {"queued_files", writer.queued()},
        {"buffer_bytes", pool.held_bytes()},
        {"hits_hot", counters.hot.load()},
        {"hits_warm", counters.warm.load()},
        {"hits_cold", counters.cold.load()},
        {"misses", counters.missed.load()},
        {"restored_tokens", counters.restored_tokens.load()},
        {"restored_ms", (double) counters.restored_us.load() / 1000},
        {"copied_bytes", copies.bytes.load()},
        {"copied_ms", (double) copies.us.load() / 1000},
        {"longest_copy_ms", (double) copies.longest_us.load() / 1000},
        {"writer_cpu_ms", (double) writer.cpu_us() / 1000},
        {"postponed", copies.postponed.load()},
        {"written_bytes", stats.written_bytes},
        {"written_payload_bytes", stats.payload_bytes},
        {"written_files", stats.written_files},
        {"skipped_files", stats.skipped_files},
        {"failed_writes", stats.failed_writes},
        {"read_bytes", stats.read_bytes},
        {"read_files", stats.read_files},
        {"evicted_files", stats.evicted_files},
        {"damaged_files", stats.damaged_files},
    };
}

int64_t kv_cold::clear(bool all) {
    return (int64_t) store.clear(all ? nullptr : &state.fingerprint);
}

} // namespace llama_ai
