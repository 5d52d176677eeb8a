#include "kv_tiers.h"

#include "hooks.h"
#include "kv_choice.h"
#include "kv_restore.h"
#include "kv_state.h"
#include "kv_writer.h"

#include "log.h"
#include "server-task.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace llama_ai {

namespace {

using clock = std::chrono::steady_clock;

const int32_t min_tokens = kv_block_tokens; // shorter prompts are not worth a file
const int32_t min_new_tokens = 16;          // nor is so little more of a conversation
const size_t piece_bytes = 24 << 20;        // cells are copied in pieces of about this size
const size_t pool_bytes = 256 << 20;
const size_t kept_partials = 3; // of a conversation, besides system prompts
const int stop_wait_ms = 30000;

double ms_since(clock::time_point start) {
    return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

// What we know about a slot.
struct slot_memo {
    bool dirty = false;      // it has worked since it was last stored as a whole
    bool known = false;      // `covered` was looked up since then
    int32_t covered = 0;     // tokens whose cells are stored or queued
    int32_t system_end = -1; // where the system prompt of the task ends, -1 without
    int32_t split_at = -1;   // where the task's prompt leaves what is stored, -1 for nowhere
    std::vector<kv_entry_ptr> partials; // of this conversation, the oldest first
    std::vector<kv_entry_ptr> used;     // files that the last restore used
    bool promote = false;
    kv_plan plan;
};

struct tier_counters {
    std::atomic<uint64_t> hot{0}, warm{0}, cold{0}, missed{0};
    std::atomic<uint64_t> restored_tokens{0}, restored_us{0}, copied_us{0}, copied_bytes{0};
    std::atomic<uint64_t> postponed{0};
};

class tiers {
public:
    tiers(const kv_options & options, server_prompt_cache & ram, const common_params & params,
          llama_context * target, llama_context * draft, common_speculative * speculative)
        : ram(ram), params(params), target(target), state(params, target, draft, speculative),
          store({options.dir, options.max_bytes, options.max_age_s, options.system_prompts}),
          pool(pool_bytes), memos((size_t) params.n_parallel),
          writer(
              store,
              [](const std::string & why) {
                  LOG_WRN("kv-cache: writing failed (%s); nothing more is stored on disk\n",
                          why.c_str());
              },
              [this] { pool.prepare(3, piece_bytes + piece_bytes / 4); }) {
        if (!state.traits.refused.empty()) {
            throw std::runtime_error(state.traits.refused);
        }
    }

    ~tiers() {
        if (!writer.drain(stop_wait_ms)) {
            LOG_WRN("kv-cache: the disk is slow; still writing %zu files\n", writer.queued());
        }
    }

    bool want(int slot_id, const server_prompt & slot, const server_task & task) {
        auto & memo = memos.at((size_t) slot_id);
        if (memo.dirty) {
            finish(slot_id, slot); // the task may change what the slot holds
        }
        memo.promote = false;
        memo.dirty = true;
        memo.known = false;
        memo.partials.clear();
        memo.used.clear();
        memo.system_end = system_end(task);
        memo.split_at = -1;
        if (task.type != SERVER_TASK_TYPE_COMPLETION || !task.params.cache_prompt) {
            return false;
        }
        if (task.params.n_cache_reuse > 0 && !tainted) {
            tainted = true;
            LOG_WRN("kv-cache: a request asked for n_cache_reuse; nothing more is stored\n");
        }

        const auto choice = choose(state.traits, slot, state.lowest_position(slot_id), ram, task);
        const auto prompt = text_prefix(task.tokens);
        store.refresh();
        kv_query query = query_for(prompt);
        query.max_end = (int32_t) task.tokens.size() - 1;
        memo.plan = store.find(query);
        const int32_t elsewhere = std::max(choice.slot_tokens, choice.ram_tokens);
        memo.promote =
            memo.plan.tokens >= min_tokens && memo.plan.tokens >= elsewhere + min_new_tokens;
        // Two conversations begin alike, and of a state that cannot be cut nothing is stored near
        // the place where they part: where the chat template does not tell the system prompt's
        // end, this is how it is found. It will be stored there now, for the third.
        if (state.traits.partial &&
            memo.plan.matched >= std::max(memo.plan.tokens, elsewhere) + 2 * min_new_tokens) {
            const int32_t at = memo.plan.matched - memo.plan.matched % min_new_tokens;
            memo.split_at = at >= min_tokens && at < (int32_t) prompt.size() ? at : -1;
        }
        if (memo.promote) {
            return true;
        }
        const int total = (int) task.tokens.size();
        const int32_t found = std::max(choice.slot_tokens, choice.ram_tokens);
        const std::string hint = rewritten_hint(memo.plan, prompt, memo.system_end, found,
                                                state.fingerprint, store, target);
        if (found == 0) {
            counters.missed++;
            LOG_INF("kv-cache: slot %d: miss, 0 of %d tokens: %s%s\n", slot_id, total,
                    miss_reason(memo.plan, prompt.size(), state.traits.partial).c_str(),
                    hint.c_str());
        } else if (choice.ram_tokens > choice.slot_tokens) {
            counters.warm++;
            LOG_INF("kv-cache: slot %d: warm, %d of %d tokens in the RAM cache%s\n", slot_id, found,
                    total, hint.c_str());
        } else {
            counters.hot++;
            LOG_INF("kv-cache: slot %d: hot, %d of %d tokens in the slot%s\n", slot_id, found,
                    total, hint.c_str());
        }
        return false;
    }

    void promote(int slot_id, server_prompt & slot, const server_task & task) {
        auto & memo = memos.at((size_t) slot_id);
        if (!memo.promote) {
            return;
        }
        memo.promote = false;
        const auto start = clock::now();
        const auto prompt = text_prefix(task.tokens);
        slot.clear();
        kv_restored result;
        std::string problems;
        for (int attempt = 0; attempt < 3 && memo.plan.tokens >= min_tokens; attempt++) {
            state.clear(slot_id);
            result = restore(slot_id, memo.plan, prompt, state, store, pool);
            if (!result.problem.empty()) {
                problems += "; " + result.problem;
            }
            if (result.tokens > 0) {
                break;
            }
            // Without what was bad there may be another way.
            kv_query query = query_for(prompt);
            query.max_end = (int32_t) task.tokens.size() - 1;
            memo.plan = store.find(query);
        }
        const double took_ms = ms_since(start);
        const int total = (int) task.tokens.size();
        if (result.tokens == 0) {
            state.clear(slot_id);
            counters.missed++;
            LOG_WRN("kv-cache: slot %d: miss, 0 of %d tokens%s\n", slot_id, total,
                    problems.c_str());
            return;
        }
        slot.tokens = server_tokens(llama_tokens(prompt.begin(), prompt.begin() + result.tokens),
                                    slot.tokens.has_mtmd);
        if (state.traits.window > 0 &&
            state.lowest_position(slot_id) >= std::max(0, result.tokens - state.traits.window)) {
            slot.checkpoints.push_back(tail_checkpoint(result, state.traits.window));
        }
        memo.used = result.used;
        kv_job job;
        job.touch = result.used;
        writer.submit(std::move(job));
        counters.cold++;
        counters.restored_tokens += (uint64_t) result.tokens;
        counters.restored_us += (uint64_t) (took_ms * 1000);
        const std::string hint = rewritten_hint(memo.plan, prompt, memo.system_end, result.tokens,
                                                state.fingerprint, store, target);
        LOG_INF("kv-cache: slot %d: cold, %d of %d tokens restored from %zu files, %.1f MB in "
                "%.1f ms%s%s\n",
                slot_id, result.tokens, total, result.used.size(), (double) result.bytes / 1e6,
                took_ms, problems.c_str(), hint.c_str());
    }

    bool split(int slot_id, int tokens) const {
        return memos.at((size_t) slot_id).split_at == tokens;
    }

    // After each batch: long prompts are stored while they are evaluated, piece by piece.
    void progress(int slot_id, const server_prompt & slot, const server_task * task) {
        auto & memo = memos.at((size_t) slot_id);
        if (!memo.dirty || !may_store()) {
            return;
        }
        if (!task) {
            finish(slot_id, slot);
            return;
        }
        if (memo.split_at > 0 && (int32_t) slot.tokens.size() >= memo.split_at) {
            const auto tokens = text_prefix(slot.tokens);
            const int32_t at = memo.split_at;
            memo.split_at = -1;
            if ((int32_t) tokens.size() == at && state.stored_tokens(slot_id) == at &&
                store_segments(slot_id, tokens, at, true, 20)) {
                store_partial(slot_id, tokens, at, kv_flag_system | kv_flag_system_end,
                              [&] { return state.copy_partial(slot_id, pool, 20); });
            }
        }
        if (!state.traits.segments || (int32_t) slot.tokens.size() - memo.covered < min_tokens) {
            return;
        }
        const auto tokens = text_prefix(slot.tokens);
        int32_t count = std::min((int32_t) tokens.size(), state.stored_tokens(slot_id));
        count -= count % kv_block_tokens;
        if (memo.covered > count) {
            memo.known = false;
        }
        store_segments(slot_id, tokens, count, false, 0);
    }

    void checkpoint(int slot_id, const server_prompt & slot, bool user_start) {
        auto & memo = memos.at((size_t) slot_id);
        const auto & taken = slot.checkpoints.back();
        if (!user_start || state.traits.whole || !may_store() ||
            taken.n_tokens != memo.system_end || taken.n_tokens < min_tokens) {
            return;
        }
        // Here the slot holds exactly the system prompt.
        const auto tokens = text_prefix(slot.tokens);
        if (taken.n_tokens > (int64_t) tokens.size() ||
            !store_segments(slot_id, tokens, (int32_t) taken.n_tokens, true, 100)) {
            return;
        }
        store_partial(slot_id, tokens, (int32_t) taken.n_tokens,
                      kv_flag_system | kv_flag_system_end,
                      [&] { return state.copy_checkpoint(taken, pool, 100); });
    }

    // All that is not stored yet.
    void finish(int slot_id, const server_prompt & slot, int wait_ms = 20) {
        auto & memo = memos.at((size_t) slot_id);
        if (!memo.dirty || !may_store()) {
            return;
        }
        const auto tokens = text_prefix(slot.tokens);
        const bool all_text = tokens.size() == slot.tokens.size();
        const int32_t in_slot = state.stored_tokens(slot_id);
        const int32_t count = std::min((int32_t) tokens.size(), in_slot);
        if (count < min_tokens) {
            memo.dirty = false;
            return;
        }
        memo.known = false;
        if (!store_segments(slot_id, tokens, count, true, wait_ms)) {
            counters.postponed++;
            return; // still dirty
        }
        memo.dirty = false;
        if (!state.traits.partial) {
            return;
        }
        // The next turn goes on from the end, or, where the template changes the last answer (its
        // reasoning is left out), from a little before it.
        if (!state.traits.whole && !slot.checkpoints.empty()) {
            const auto & last = slot.checkpoints.back();
            if (last.n_tokens >= min_tokens && last.n_tokens < count) {
                store_partial(slot_id, tokens, (int32_t) last.n_tokens, 0,
                              [&] { return state.copy_checkpoint(last, pool, wait_ms); });
            }
        }
        if (all_text && count == (int32_t) tokens.size() && count == in_slot) {
            store_partial(slot_id, tokens, count, 0,
                          [&] { return state.copy_partial(slot_id, pool, wait_ms); });
        }
    }

    nlohmann::json status() {
        const auto stats = store.stats(state.fingerprint);
        return {
            {"enabled", true},
            {"dir", store.dir()},
            {"writing", !writer.broken() && !tainted},
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
            {"copied_bytes", counters.copied_bytes.load()},
            {"copied_ms", (double) counters.copied_us.load() / 1000},
            {"postponed", counters.postponed.load()},
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

    int64_t clear(bool all) {
        return (int64_t) store.clear(all ? nullptr : &state.fingerprint);
    }

    void note_start() {
        const auto stats = store.stats(state.fingerprint);
        LOG_INF("kv-cache: %s, %" PRIu64 " files (%" PRIu64 " of this model), %.1f MB of at most "
                "%.1f MB\n",
                store.dir().c_str(), stats.files, stats.own_files, (double) stats.bytes / 1e6,
                (double) stats.cap_bytes / 1e6);
    }

private:
    bool may_store() const {
        return !tainted && !writer.broken();
    }

    static int32_t system_end(const server_task & task) {
        for (const auto & span : task.params.message_spans.spans) {
            if (span.role == COMMON_CHAT_ROLE_USER) {
                return (int32_t) span.pos;
            }
        }
        return -1;
    }

    kv_query query_for(const std::vector<int32_t> & tokens) const {
        kv_query query;
        query.fingerprint = state.fingerprint;
        query.tokens = tokens.data();
        query.count = tokens.size();
        query.segments = state.traits.segments;
        query.partial = state.traits.partial;
        return query;
    }

    kv_header header_for(kv_kind kind, int32_t begin, int32_t end, uint32_t flags,
                         const std::vector<kv_key> & keys, const kv_copy & copy) const {
        kv_header header;
        header.fingerprint = state.fingerprint;
        header.kind = kind;
        header.flags = flags;
        header.begin = begin;
        header.end = end;
        header.model = state.model;
        header.sections = copy.sections;
        kv_set_keys(header, keys);
        return header;
    }

    bool submit(kv_header header, const std::vector<int32_t> & tokens, kv_copy & copy,
                const slot_memo & memo, std::vector<kv_entry_ptr> replaces, kv_entry_ptr & entry) {
        auto own =
            std::make_shared<std::vector<int32_t>>(tokens.begin(), tokens.begin() + header.end);
        entry = store.announce(header, own);
        if (!entry) {
            return false;
        }
        kv_job job;
        job.entry = entry;
        job.data = std::move(copy.data);
        job.touch = memo.used;
        job.replaces = std::move(replaces);
        writer.submit(std::move(job));
        return true;
    }

    void count_copy(const kv_copy & copy, clock::time_point start) {
        counters.copied_us += (uint64_t) (ms_since(start) * 1000);
        counters.copied_bytes += copy.bytes();
    }

    // Copies and queues the cells up to `count`. `rest`: also what is less than a piece. False
    // when the pool has no room for all of it now.
    bool store_segments(int slot_id, const std::vector<int32_t> & tokens, int32_t count, bool rest,
                        int wait_ms) {
        auto & memo = memos.at((size_t) slot_id);
        if (!state.traits.segments) {
            return true;
        }
        if (!memo.known) {
            kv_query query = query_for(tokens);
            query.partial = false;
            query.pending = true;
            memo.covered = std::min(store.find(query).covered, count);
            memo.known = true;
        }
        const auto keys = kv_block_keys(state.fingerprint, 0, tokens.data(), (size_t) count);
        while (memo.covered < count) {
            if (token_bytes == 0) {
                token_bytes = std::max<size_t>(1, state.segment_bytes(slot_id, 0, kv_block_tokens) /
                                                      kv_block_tokens);
            }
            const auto in_piece =
                (int32_t) std::clamp<size_t>(piece_bytes / token_bytes, 32, 1 << 20);
            int32_t end = std::min(count, memo.covered + in_piece);
            uint32_t flags = 0;
            const bool in_system = memo.system_end >= min_tokens && memo.covered < memo.system_end;
            const bool cut = in_system && count >= memo.system_end;
            if (in_system) {
                end = std::min(end, memo.system_end);
                flags = kv_flag_system;
                if (end == memo.system_end && !state.traits.partial) {
                    flags |= kv_flag_system_end;
                }
            }
            const bool whole_piece =
                end - memo.covered >= in_piece || (cut && end == memo.system_end);
            if (!whole_piece && !rest) {
                return true;
            }
            if (!whole_piece && memo.covered > 0 && end - memo.covered < min_new_tokens) {
                return true;
            }
            const auto start = clock::now();
            kv_copy copy = state.copy_segment(slot_id, memo.covered, end, pool, wait_ms);
            if (copy.sections.empty()) {
                return false;
            }
            count_copy(copy, start);
            kv_entry_ptr entry;
            submit(header_for(kv_kind::segment, memo.covered, end, flags, keys, copy), tokens, copy,
                   memo, {}, entry);
            memo.covered = end;
        }
        return true;
    }

    template <typename Copy>
    void store_partial(int slot_id, const std::vector<int32_t> & tokens, int32_t end,
                       uint32_t flags, Copy && take) {
        auto & memo = memos.at((size_t) slot_id);
        const auto keys = kv_block_keys(state.fingerprint, 0, tokens.data(), (size_t) end);
        {
            kv_query query = query_for(tokens);
            query.count = (size_t) end;
            query.segments = false;
            query.partial = true;
            query.pending = true;
            const auto plan = store.find(query);
            if (plan.partial && plan.partial->header.end == end) {
                return; // stored already
            }
        }
        const auto start = clock::now();
        kv_copy copy = take();
        if (copy.sections.empty()) {
            counters.postponed++;
            return;
        }
        count_copy(copy, start);
        std::vector<kv_entry_ptr> replaces;
        if (!(flags & kv_flag_system) && memo.partials.size() >= kept_partials) {
            replaces.push_back(memo.partials.front());
            memo.partials.erase(memo.partials.begin());
        }
        kv_entry_ptr entry;
        if (submit(header_for(kv_kind::partial, end, end, flags, keys, copy), tokens, copy, memo,
                   std::move(replaces), entry) &&
            !(flags & kv_flag_system)) {
            memo.partials.push_back(entry);
        }
    }

    server_prompt_cache & ram;
    const common_params & params;
    llama_context * target;
    kv_state state;
    kv_store store;
    kv_buffer_pool pool;
    std::vector<slot_memo> memos;
    size_t token_bytes = 0; // of a cell, 0 until it was measured
    std::atomic<bool> tainted{false};
    tier_counters counters;
    kv_writer writer; // the last member: its thread uses the others
};

kv_options options;
std::mutex active_mutex; // the routes come from other threads
std::unique_ptr<tiers> active;
std::string off_reason = "no --kv-dir, or --no-kv-disk";

void attach(server_prompt_cache & cache, const common_params & params, llama_context * target,
            llama_context * draft, common_speculative * speculative) {
    std::lock_guard<std::mutex> guard(active_mutex);
    active.reset();
    if (!options.disk) {
        return;
    }
    try {
        active = std::make_unique<tiers>(options, cache, params, target, draft, speculative);
        active->note_start();
    } catch (const std::exception & error) {
        off_reason = error.what();
        LOG_WRN("kv-cache: off, nothing is kept on disk: %s\n", error.what());
    }
}

void detach() {
    std::unique_ptr<tiers> ending; // it waits for the disk, and nobody should wait for that
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
            active->finish(slot_id, slot, 1000);
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
