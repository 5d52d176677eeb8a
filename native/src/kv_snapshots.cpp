#include "kv_snapshots.h"

#include "kv_choice.h"

#include "log.h"

#include <algorithm>

namespace llama_ai {

static const size_t kept_partials = 3; // of a conversation, besides system prompts
static const int system_wait_ms = 100; // for memory to copy a system prompt, which comes but once
static const int split_wait_ms = 20;

void kv_snapshots::begin(kv_slot & memo, const server_tokens & held, const server_tokens & prompt,
                         int32_t system_end) {
    const auto common = (int32_t) held.get_common_prefix(prompt);
    auto partials = std::move(memo.partials);
    partials.erase(std::remove_if(partials.begin(), partials.end(),
                                  [&](const auto & entry) { return entry->header.end > common; }),
                   partials.end());
    if (common >= kv_min_tokens) {
        answers_stay = common == (int32_t) held.size();
    }
    memo = {};
    memo.dirty = true;
    memo.system_end = system_end;
    memo.partials = std::move(partials);
}

void kv_snapshots::restored(kv_slot & memo, const std::vector<kv_entry_ptr> & files) {
    memo.used = files;
    memo.partials.clear();
    for (const auto & entry : files) {
        if (entry->header.kind == kv_kind::partial && !(entry->header.flags & kv_flag_system)) {
            memo.partials.push_back(entry);
        }
    }
}

void kv_snapshots::stop(const std::string & why) {
    if (!stopped) {
        stopped = true;
        LOG_WRN("kv-cache: %s; nothing more is stored\n", why.c_str());
    }
}

void kv_snapshots::progress(kv_slot & memo, int slot_id, const server_prompt & slot,
                            const server_task * task) {
    if (!memo.dirty || !may_store()) {
        return;
    }
    if (!task) {
        finish(memo, slot_id, slot,
               0); // others may be generating: never wait, there is a next batch
        return;
    }
    const auto held = (int32_t) slot.tokens.size();
    if (memo.split_at > 0 && held >= memo.split_at) {
        const auto tokens = text_prefix(slot.tokens);
        const int32_t at = memo.split_at;
        memo.split_at = -1;
        if ((int32_t) tokens.size() == at && state.stored_tokens(slot_id) == at &&
            store_segments(memo, slot_id, tokens, at, true, split_wait_ms)) {
            store_partial(memo, tokens, at, kv_flag_system | kv_flag_system_end,
                          [&] { return state.copy_partial(slot_id, pool, split_wait_ms); });
        }
    }
    if (!state.traits.segments || held - memo.covered < kv_min_tokens || held < memo.look_again) {
        return;
    }
    const auto tokens = text_prefix(slot.tokens);
    int32_t count = std::min((int32_t) tokens.size(), state.stored_tokens(slot_id));
    count -= count % kv_block_tokens;
    if (memo.covered > count) {
        memo.known = false;
    }
    store_segments(memo, slot_id, tokens, count, false, 0);
}

void kv_snapshots::checkpoint(kv_slot & memo, int slot_id, const server_prompt & slot,
                              bool user_start) {
    const auto & taken = slot.checkpoints.back();
    if (!user_start || state.traits.whole || !may_store() || taken.n_tokens != memo.system_end ||
        taken.n_tokens < kv_min_tokens) {
        return;
    }
    // Here the slot holds exactly the system prompt.
    const auto tokens = text_prefix(slot.tokens);
    if (taken.n_tokens > (int64_t) tokens.size() ||
        !store_segments(memo, slot_id, tokens, (int32_t) taken.n_tokens, true, system_wait_ms)) {
        return;
    }
    store_partial(memo, tokens, (int32_t) taken.n_tokens, kv_flag_system | kv_flag_system_end,
                  [&] { return state.copy_checkpoint(taken, pool, system_wait_ms); });
}

void kv_snapshots::finish(kv_slot & memo, int slot_id, const server_prompt & slot, int wait_ms) {
    if (!memo.dirty || !may_store()) {
        return;
    }
    const auto tokens = text_prefix(slot.tokens);
    const bool all_text = tokens.size() == slot.tokens.size();
    const int32_t in_slot = state.stored_tokens(slot_id);
    const int32_t count = std::min((int32_t) tokens.size(), in_slot);
    if (count < kv_min_tokens) {
        memo.dirty = false;
        return;
    }
    memo.known = false;
    if (!store_segments(memo, slot_id, tokens, count, true, wait_ms)) {
        counters.postponed++;
        return; // still dirty
    }
    memo.dirty = false;
    if (!state.traits.partial) {
        return;
    }
    // The next turn goes on from the end, or, where the template changes the last answer (its
    // reasoning is left out), from a little before it. A state can be as large as all the cells of
    // a turn, so only one of them is written once it is clear which.
    if (!state.traits.whole && !answers_stay && !slot.checkpoints.empty()) {
        const auto & last = slot.checkpoints.back();
        if (last.n_tokens >= kv_min_tokens && last.n_tokens < count) {
            store_partial(memo, tokens, (int32_t) last.n_tokens, 0,
                          [&] { return state.copy_checkpoint(last, pool, wait_ms); });
        }
    }
    if (all_text && count == (int32_t) tokens.size() && count == in_slot) {
        store_partial(memo, tokens, count, 0,
                      [&] { return state.copy_partial(slot_id, pool, wait_ms); });
    }
}

void kv_snapshots::count_copy(const kv_copy & copy, clock::time_point start) {
    const auto us =
        (uint64_t) std::chrono::duration<double, std::micro>(clock::now() - start).count();
    counters.us += us;
    counters.bytes += copy.bytes();
    counters.longest_us = std::max<uint64_t>(counters.longest_us, us);
}

kv_header kv_snapshots::header_for(kv_kind kind, int32_t begin, int32_t end, uint32_t flags,
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

bool kv_snapshots::submit(kv_header header, const std::vector<int32_t> & tokens, kv_copy & copy,
                          const kv_slot & memo, std::vector<kv_entry_ptr> replaces,
                          kv_entry_ptr & entry) {
    auto own = std::make_shared<std::vector<int32_t>>(tokens.begin(), tokens.begin() + header.end);
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

// Copies and queues the cells up to `count`. `rest`: also what is less than a piece. False when the
// pool has no room for all of it now.
bool kv_snapshots::store_segments(kv_slot & memo, int slot_id, const std::vector<int32_t> & tokens,
                                  int32_t count, bool rest, int wait_ms) {
    if (!state.traits.segments) {
        return true;
    }
    if (!memo.known) {
        kv_query query = state.query(tokens);
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
            (int32_t) std::clamp<size_t>(kv_piece_bytes / token_bytes, 32, 1 << 20);
        int32_t end = std::min(count, memo.covered + in_piece);
        uint32_t flags = 0;
        const bool in_system = memo.system_end >= kv_min_tokens && memo.covered < memo.system_end;
        const bool cut = in_system && count >= memo.system_end;
        if (in_system) {
            end = std::min(end, memo.system_end);
            flags = kv_flag_system;
            if (end == memo.system_end && !state.traits.partial) {
                flags |= kv_flag_system_end;
            }
        }
        const bool whole_piece = end - memo.covered >= in_piece || (cut && end == memo.system_end);
        if (!whole_piece && !rest) {
            memo.look_again = memo.covered + in_piece;
            if (in_system) {
                memo.look_again = std::min(memo.look_again, memo.system_end);
            }
            return true;
        }
        if (!whole_piece && memo.covered > 0 && end - memo.covered < kv_min_new_tokens) {
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

void kv_snapshots::store_partial(kv_slot & memo, const std::vector<int32_t> & tokens, int32_t end,
                                 uint32_t flags, const std::function<kv_copy()> & take) {
    const auto keys = kv_block_keys(state.fingerprint, 0, tokens.data(), (size_t) end);
    {
        kv_query query = state.query(tokens);
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

} // namespace llama_ai
