// What the KV store has of a prompt.

#include "kv_store.h"

#include <algorithm>
#include <climits>

namespace llama_ai {

kv_plan kv_store::find(const kv_query & query) {
    lock guard(mutex);
    kv_plan plan;
    const auto keys = kv_block_keys(query.fingerprint, query.space, query.tokens, query.count);
    std::vector<kv_plan::piece> segments;
    std::vector<kv_entry_ptr> partials;
    for (size_t block = 0; block < keys.size(); block++) {
        std::vector<kv_entry_ptr> candidates; // a bad one leaves the index while we look at it
        std::vector<kv_entry_ptr> parting;    // in the next block: less than a block to be had
        const auto range = by_start.equal_range(keys[block]);
        for (auto it = range.first; it != range.second; ++it) {
            const auto & next = it->second->header.next_key;
            const bool parts = block + 1 < keys.size() && !next.empty() && next != keys[block + 1];
            (parts ? parting : candidates).push_back(it->second);
        }
        // A popular system prompt has thousands of these.
        const auto most = parting.begin() + (ptrdiff_t) std::min<size_t>(parting.size(), 16);
        std::partial_sort(parting.begin(), most, parting.end(),
                          [](const auto & a, const auto & b) { return a->used_ns > b->used_ns; });
        candidates.insert(candidates.end(), parting.begin(), most);
        for (const auto & entry : candidates) {
            const auto & header = entry->header;
            if (!(header.fingerprint == query.fingerprint) || header.space != query.space ||
                (!entry->durable && !query.pending)) {
                continue;
            }
            // With another first block less than a block is common, and that is not worth it.
            if (block == 0 && !header.next_key.empty() &&
                (keys.size() < 2 || header.next_key != keys[1])) {
                continue;
            }
            const auto stored = tokens(entry);
            if (!stored) {
                continue;
            }
            const size_t length = std::min(stored->size(), query.count);
            const auto differ =
                std::mismatch(stored->begin(), stored->begin() + (ptrdiff_t) length, query.tokens);
            const int32_t common = (int32_t) (differ.first - stored->begin());
            if (common > plan.matched) {
                plan.matched = common;
                plan.closest = entry;
            }
            if (header.kind == kv_kind::segment && common > header.begin) {
                segments.push_back({entry, header.begin, common});
            } else if (header.kind == kv_kind::partial && common == header.end &&
                       header.end <= query.max_end) {
                partials.push_back(entry);
            }
        }
    }

    if (!query.segments && plan.matched == 0 && keys.size() > 1) {
        // Without cells nothing says where two conversations part but the states' own tokens.
        const auto range = partials_by_first.equal_range(keys[1]);
        int looked_at = 0;
        for (auto it = range.first; it != range.second && looked_at < 64; ++it, ++looked_at) {
            const kv_entry_ptr entry = it->second;
            const auto stored = entry->durable ? tokens(entry) : nullptr;
            if (!stored) {
                break; // the index has changed
            }
            const size_t length = std::min(stored->size(), query.count);
            const auto differ =
                std::mismatch(stored->begin(), stored->begin() + (ptrdiff_t) length, query.tokens);
            const int32_t common = (int32_t) (differ.first - stored->begin());
            if (common > plan.matched) {
                plan.matched = common;
                plan.closest = entry;
            }
        }
    }

    // From each position the piece that reaches farthest.
    std::vector<kv_plan::piece> cover;
    while (query.segments) {
        const kv_plan::piece * best = nullptr;
        for (const auto & piece : segments) {
            if (piece.begin <= plan.covered && piece.end > plan.covered &&
                (!best || piece.end > best->end)) {
                best = &piece;
            }
        }
        if (!best) {
            break;
        }
        if (!cover.empty()) {
            cover.back().end = std::min(cover.back().end, best->begin);
        }
        plan.covered = best->end;
        cover.push_back(*best);
    }
    plan.tokens = plan.covered;
    if (query.partial) {
        plan.tokens = 0;
        for (const auto & entry : partials) {
            if ((!query.segments || entry->header.end <= plan.covered) &&
                entry->header.end > plan.tokens) {
                plan.tokens = entry->header.end;
                plan.partial = entry;
            }
        }
    }
    for (const auto & piece : cover) {
        if (piece.begin < plan.tokens) {
            plan.pieces.push_back(piece);
            plan.pieces.back().end = std::min(piece.end, plan.tokens);
        }
    }
    for (const auto & item : entries) {
        const auto & header = item.second->header;
        const bool own = header.fingerprint == query.fingerprint && header.space == query.space;
        (own ? plan.own : plan.others)++;
    }
    plan.evicted = keys.size() > 1 && evicted_starts.count(keys[0].low ^ keys[1].high) > 0;
    return plan;
}

} // namespace llama_ai
