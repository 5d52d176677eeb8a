#include "kv_restore.h"

#include "kv_read_ahead.h"

#include <algorithm>
#include <cstring>

namespace llama_ai {

kv_restored restore(int slot_id, const kv_plan & plan, const std::vector<int32_t> & prompt,
                    kv_state & state, kv_store & store, kv_buffer_pool & pool) {
    kv_restored result;
    std::vector<kv_entry_ptr> entries;
    for (const auto & piece : plan.pieces) {
        entries.push_back(piece.entry);
    }
    if (plan.partial) {
        entries.push_back(plan.partial);
    }
    kv_read_ahead files(entries, store, pool);

    int32_t held = 0;
    for (size_t i = 0; i < entries.size(); i++) {
        auto file = files.take(i);
        const auto & entry = entries[i];
        const bool segment = i < plan.pieces.size();
        const int32_t end = segment ? plan.pieces[i].end : entry->header.end;
        bool good = file.status == kv_read::ok;
        // The file's own tokens, once more: nothing that was remembered about it counts.
        if (good && (file.header.end < end || (size_t) end > prompt.size() ||
                     std::memcmp(file.data.get() + kv_fixed_bytes, prompt.data(),
                                 (size_t) end * sizeof(int32_t)) != 0)) {
            good = false;
            file.status = kv_read::damaged;
        }
        if (!good) {
            if (file.status == kv_read::damaged) {
                store.set_aside(entry);
            }
            if (!result.problem.empty()) {
                continue;
            }
            result.problem =
                entry->name + (file.status == kv_read::damaged   ? " is damaged and was set aside"
                               : file.status == kv_read::missing ? " is gone"
                                                                 : " cannot be read");
            continue;
        }
        if (!result.problem.empty()) {
            continue; // looked at, so that what is damaged as well is written anew
        }
        // Cells past `begin` that an earlier piece brought are the same ones: never both.
        const bool fits =
            (!segment || file.header.begin >= held || state.cut(slot_id, file.header.begin)) &&
            state.restore(slot_id, file.header, file.data.get()) &&
            (!segment || file.header.end == end || state.cut(slot_id, end));
        if (!fits) {
            result.problem = "the engine did not take " + entry->name;
            return result;
        }
        result.bytes += file.header.file_bytes;
        result.used.push_back(entry);
        held = end;
        if (!segment && state.traits.window > 0) {
            for (const auto & section : file.header.sections) {
                const uint8_t * data = file.data.get() + section.offset;
                auto & to = section.type == kv_section_type::target  ? result.target
                            : section.type == kv_section_type::draft ? result.draft
                                                                     : result.speculative;
                to.assign(data, data + section.size);
            }
        }
    }
    const bool whole = result.problem.empty();
    if (!whole && state.traits.partial) {
        return result; // without its partial state the beginning is of no use
    }
    if (state.stored_tokens(slot_id) != held) {
        result.problem = "the restored state does not end where it should";
        return result;
    }
    result.tokens = held;
    return result;
}

common_prompt_checkpoint tail_checkpoint(const kv_restored & restored, int32_t window) {
    common_prompt_checkpoint checkpoint = {};
    checkpoint.id_task = -1;
    checkpoint.update_pos(restored.tokens, std::max(0, restored.tokens - window - 1),
                          restored.tokens);
    checkpoint.data_tgt = restored.target;
    checkpoint.data_dft = restored.draft;
    checkpoint.data_spec = restored.speculative;
    return checkpoint;
}

} // namespace llama_ai
