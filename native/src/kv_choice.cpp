#include "kv_choice.h"

#include "prefix_cache.h"

#include <algorithm>

namespace llama_ai {

std::vector<int32_t> text_prefix(const server_tokens & tokens) {
    // Not get_tokens(): that aborts where the model sees pictures, whether or not there are any.
    std::vector<int32_t> result;
    result.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size() && tokens[i] != LLAMA_TOKEN_NULL; i++) {
        result.push_back(tokens[i]);
    }
    return result;
}

// How many tokens of `held` upstream goes on from, by the rules of its update_slots.
static int32_t usable(const kv_traits & traits, const server_prompt & held, int32_t lowest,
                      const server_tokens & prompt) {
    const auto common = (int32_t) held.tokens.get_common_prefix(prompt);
    const bool more = common < (int32_t) prompt.size();
    const int32_t needed = std::max(0, common - traits.window - (more ? 0 : 1));
    if (common == 0 || !traits.partial || (lowest >= 0 && lowest < needed)) {
        return common;
    }
    for (auto it = held.checkpoints.rbegin(); it != held.checkpoints.rend(); ++it) {
        if (it->pos_max <= common && (it->pos_min < needed || it->pos_min == 0)) {
            return std::min(common, (int32_t) it->n_tokens);
        }
    }
    return 0;
}

kv_choice choose(const kv_traits & traits, const server_prompt & slot, int32_t lowest,
                 const server_prompt_cache & ram, const server_task & task) {
    kv_choice choice;
    choice.slot_tokens = usable(traits, slot, lowest, task.tokens);

    // server_prompt_cache::load keeps a candidate that is better in both: the share of the entry
    // that is kept and the share of the prompt that is found.
    const auto share = [](size_t part, size_t whole) {
        return whole > 0 ? (float) part / (float) whole : -1.0f;
    };
    const size_t common = slot.tokens.get_common_prefix(task.tokens);
    float kept = share(common, slot.tokens.size());
    float found = share(common, task.tokens.size());
    const server_prompt_cache_state * best = nullptr;
    for (const auto & entry : ram.states) {
        const size_t length = entry.prompt.tokens.get_common_prefix(task.tokens);
        const float entry_kept = share(length, entry.prompt.tokens.size());
        const float entry_found = share(length, task.tokens.size());
        if (entry_kept >= 0.25f && kept < entry_kept && found < entry_found) {
            kept = entry_kept;
            found = entry_found;
            best = &entry;
        }
    }
    if (best) {
        const auto size = (int32_t) best->prompt.tokens.size();
        const int32_t entry_lowest =
            traits.recurrent ? size - 1 : std::max(0, size - traits.window);
        choice.ram_tokens = usable(traits, best->prompt, entry_lowest, task.tokens);
        choice.slot_tokens = 0; // it is replaced
    }
    return choice;
}

std::string miss_reason(const kv_plan & plan, size_t prompt_tokens, bool partial) {
    if (prompt_tokens < (size_t) kv_block_tokens) {
        return "too short to be stored";
    }
    if (plan.matched >= kv_block_tokens) {
        const std::string text = "first divergence at token " + std::to_string(plan.matched);
        return partial ? text + ", and the model's state is stored for no token before it" : text;
    }
    if (plan.evicted) {
        return "evicted";
    }
    if (plan.own > 0) {
        return "first divergence before token " + std::to_string(kv_block_tokens);
    }
    return plan.others > 0 ? "other fingerprint (what is stored is of other models or settings)"
                           : "nothing is stored";
}

static std::string text_of(llama_context * context, const std::vector<int32_t> & tokens,
                           size_t count) {
    return common_detokenize(
        context, llama_tokens(tokens.begin(), tokens.begin() + (ptrdiff_t) count), true);
}

std::string rewritten_hint(const kv_plan & plan, const std::vector<int32_t> & prompt,
                           int32_t system_end, int32_t found, const kv_key & fingerprint,
                           kv_store & store, llama_context * context) {
    const size_t most = 32768; // tokens: enough for tool definitions, and soon looked at
    const size_t count = system_end > 0 ? (size_t) system_end : std::min(prompt.size(), most);
    if (found >= (int32_t) count || count < (size_t) kv_block_tokens || count > prompt.size()) {
        return "";
    }
    auto candidates = store.system_prompts(fingerprint);
    if (plan.closest) {
        candidates.push_back(plan.closest);
    }
    const std::string text = text_of(context, prompt, count);
    if (candidates.empty() || text.find('{') == std::string::npos) {
        return "";
    }
    for (const auto & entry : candidates) {
        const auto stored = store.tokens(entry);
        if (!stored) {
            continue;
        }
        const std::string other = text_of(context, *stored, std::min(stored->size(), most));
        if (same_objects_written_differently(text, other)) {
            const auto length = std::min(stored->size(), prompt.size());
            const auto differ =
                std::mismatch(prompt.begin(), prompt.begin() + (ptrdiff_t) length, stored->begin());
            return "; from token " + std::to_string(differ.first - prompt.begin()) +
                   " on the same tool definitions as before are written in another way: a client "
                   "that always sorts its keys alike would keep its prefix";
        }
    }
    return "";
}

} // namespace llama_ai
