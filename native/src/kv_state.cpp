#include "kv_state.h"

#include "kv_fingerprint.h"
#include "kv_segment.h"

#include "llama-context.h"
#include "llama-memory.h"
#include "log.h"
#include "speculative.h"

#include <algorithm>
#include <cstring>
#include <typeinfo>

namespace llama_ai {

namespace {

// A wish, as long as it lives.
class wish_scope {
public:
    static kv_wish segment(int32_t begin, int32_t end, bool whole_windows) {
        kv_wish wish;
        wish.what = kv_wish::segment;
        wish.begin = begin;
        wish.end = end;
        wish.whole_windows = whole_windows;
        return wish;
    }
    static kv_wish window() {
        kv_wish wish;
        wish.what = kv_wish::window;
        return wish;
    }
    explicit wish_scope(kv_wish wish) {
        current_kv_wish = std::move(wish);
    }
    ~wish_scope() {
        current_kv_wish = {};
    }
    wish_scope(const wish_scope &) = delete;
    wish_scope & operator=(const wish_scope &) = delete;
};

} // namespace

size_t kv_copy::bytes() const {
    size_t sum = 0;
    for (const auto & section : sections) {
        sum += section.size;
    }
    return sum;
}

static bool invoked(const common_adapter_lora_info & adapter) {
    return adapter.ptr && llama_adapter_get_alora_n_invocation_tokens(adapter.ptr) > 0;
}

static kv_traits traits_of(const common_params & params, llama_context * target) {
    kv_traits traits;
    const llama_model * loaded = llama_get_model(target);
    llama_memory_t memory = llama_get_memory(target);
    if (!memory) {
        traits.refused = "the model keeps no state";
    } else if (llama_model_has_encoder(loaded)) {
        traits.refused = "the model has an encoder";
    } else if (params.embedding) {
        traits.refused = "the server makes embeddings";
    } else if (std::any_of(params.lora_adapters.begin(), params.lora_adapters.end(), invoked)) {
        // It is switched on in the middle of a prompt.
        traits.refused = "a LoRA adapter with invocation tokens is loaded";
    } else if (params.ctx_shift) {
        traits.refused = "--context-shift moves states that no longer belong to their tokens";
    } else if (params.n_cache_reuse > 0) {
        traits.refused = "--cache-reuse moves states that no longer belong to their tokens";
    }
    if (!traits.refused.empty()) {
        return traits;
    }

    traits.window = params.swa_full ? 0 : llama_model_n_swa(loaded);
    traits.recurrent = llama_model_is_recurrent(loaded) || llama_model_is_hybrid(loaded);
    traits.partial = traits.recurrent || traits.window > 0;
    traits.segments = !llama_model_is_recurrent(loaded);
    const std::string kind = typeid(*memory).name(); // mangled: a length and the class's name
    bool known = false;
    for (const char * name :
         {"14llama_kv_cache", "19llama_kv_cache_iswa", "18llama_kv_cache_dsa",
          "19llama_memory_hybrid", "24llama_memory_hybrid_iswa", "22llama_memory_recurrent"}) {
        known = known || kind == name;
    }
    if (!known) {
        traits.segments = false;
        traits.partial = true;
        traits.whole = true;
        traits.recurrent = true;
    }
    return traits;
}

kv_state::kv_state(const common_params & params, llama_context * target, llama_context * draft,
                   common_speculative * speculative)
    : traits(traits_of(params, target)), target(target), draft(draft), speculative(speculative),
      whole_windows(params.swa_full) {
    const size_t slash = params.model.path.find_last_of('/');
    model = slash == std::string::npos ? params.model.path : params.model.path.substr(slash + 1);
    if (!traits.refused.empty()) {
        return;
    }
    if (draft) {
        const kv_traits other = traits_of(params, draft);
        traits.partial = traits.partial || other.partial;
        traits.recurrent = traits.recurrent || other.recurrent;
        if (traits.whole || other.whole) {
            traits.whole = true;
            traits.segments = false;
        }
    }
    fingerprint = make_fingerprint(params, target, draft);
}

llama_state_seq_flags kv_state::partial_flags() const {
    return traits.whole ? LLAMA_STATE_SEQ_FLAGS_NONE : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
}

kv_query kv_state::query(const std::vector<int32_t> & tokens) const {
    kv_query query;
    query.fingerprint = fingerprint;
    query.tokens = tokens.data();
    query.count = tokens.size();
    query.segments = traits.segments;
    query.partial = traits.partial;
    return query;
}

int32_t kv_state::stored_tokens(int slot_id) const {
    int32_t count = llama_memory_seq_pos_max(llama_get_memory(target), slot_id) + 1;
    if (draft) {
        count = std::min(count, llama_memory_seq_pos_max(llama_get_memory(draft), slot_id) + 1);
    }
    return std::max(count, 0);
}

int32_t kv_state::lowest_position(int slot_id) const {
    return llama_memory_seq_pos_min(llama_get_memory(target), slot_id);
}

static void add_section(kv_copy & copy, kv_section_type type, const void * data, size_t size,
                        kv_buffer_pool & pool, int wait_ms) {
    if (size == 0) {
        return;
    }
    kv_buffer buffer = pool.acquire(size, wait_ms);
    if (!buffer) {
        copy = {};
        return;
    }
    std::memcpy(buffer.get(), data, size);
    kv_section section;
    section.type = type;
    section.size = size;
    copy.sections.push_back(section);
    copy.data.push_back(std::move(buffer));
}

kv_copy kv_state::copy(int slot_id, llama_state_seq_flags flags, kv_buffer_pool & pool,
                       int wait_ms) {
    kv_copy result;
    for (llama_context * context : {target, draft}) {
        if (!context) {
            continue;
        }
        const size_t size = llama_state_seq_get_size_ext(context, slot_id, flags);
        current_kv_wish.places.clear(); // asking for the size notes them as well
        kv_buffer buffer = pool.acquire(size, wait_ms);
        if (!buffer ||
            llama_state_seq_get_data_ext(context, buffer.get(), size, slot_id, flags) != size) {
            return {};
        }
        kv_section section;
        section.type = context == target ? kv_section_type::target : kv_section_type::draft;
        section.size = size;
        result.sections.push_back(section);
        result.data.push_back(std::move(buffer));
        auto & places = current_kv_wish.places;
        if (!places.empty()) {
            places.insert(places.begin(), current_kv_wish.head);
            add_section(result,
                        context == target ? kv_section_type::target_places
                                          : kv_section_type::draft_places,
                        places.data(), places.size() * sizeof(places[0]), pool, wait_ms);
            places.clear();
            if (result.sections.empty()) {
                return {};
            }
        }
    }
    return result;
}

size_t kv_state::segment_bytes(int slot_id, int32_t begin, int32_t end) {
    wish_scope scope(wish_scope::segment(begin, end, whole_windows));
    size_t size = 0;
    for (llama_context * context : {target, draft}) {
        size += context ? llama_state_seq_get_size_ext(context, slot_id, 0) : 0;
    }
    return size;
}

kv_copy kv_state::copy_segment(int slot_id, int32_t begin, int32_t end, kv_buffer_pool & pool,
                               int wait_ms) {
    wish_scope scope(wish_scope::segment(begin, end, whole_windows));
    return copy(slot_id, LLAMA_STATE_SEQ_FLAGS_NONE, pool, wait_ms);
}

kv_copy kv_state::copy_partial(int slot_id, kv_buffer_pool & pool, int wait_ms) {
    wish_scope scope(wish_scope::window());
    kv_copy result = copy(slot_id, partial_flags(), pool, wait_ms);
    std::vector<uint8_t> pending;
    if (!result.sections.empty() && speculative &&
        common_speculative_get_state(speculative, slot_id, pending)) {
        add_section(result, kv_section_type::speculative, pending.data(), pending.size(), pool,
                    wait_ms);
    }
    return result;
}

kv_copy kv_state::copy_checkpoint(const common_prompt_checkpoint & checkpoint,
                                  kv_buffer_pool & pool, int wait_ms) {
    kv_copy result;
    add_section(result, kv_section_type::target, checkpoint.data_tgt.data(),
                checkpoint.data_tgt.size(), pool, wait_ms);
    if (!result.sections.empty()) {
        add_section(result, kv_section_type::draft, checkpoint.data_dft.data(),
                    checkpoint.data_dft.size(), pool, wait_ms);
    }
    if (!result.sections.empty()) {
        add_section(result, kv_section_type::speculative, checkpoint.data_spec.data(),
                    checkpoint.data_spec.size(), pool, wait_ms);
    }
    return result;
}

void kv_state::clear(int slot_id) {
    for (llama_context * context : {target, draft}) {
        if (context) {
            llama_memory_seq_rm(llama_get_memory(context), slot_id, -1, -1);
        }
    }
}

bool kv_state::cut(int slot_id, int32_t begin) {
    for (llama_context * context : {target, draft}) {
        if (context && !llama_memory_seq_rm(llama_get_memory(context), slot_id, begin, -1)) {
            return false;
        }
    }
    return true;
}

bool kv_state::restore(int slot_id, const kv_header & header, const uint8_t * bytes) {
    const bool segment = header.kind == kv_kind::segment;
    const auto content = [&](kv_section_type type) -> const kv_section * {
        for (const auto & section : header.sections) {
            if (section.type == type) {
                return &section;
            }
        }
        return nullptr;
    };
    const auto put = [&](llama_context * context, kv_section_type type, kv_section_type places) {
        const kv_section * section = content(type);
        if (!context || !section) {
            return !context && !section;
        }
        kv_wish wish =
            segment ? wish_scope::segment(header.begin, header.end, whole_windows) : kv_wish();
        if (const kv_section * list = segment ? nullptr : content(places)) {
            std::vector<uint32_t> numbers(list->size / sizeof(uint32_t));
            std::memcpy(numbers.data(), bytes + list->offset, numbers.size() * sizeof(uint32_t));
            wish.what = kv_wish::window;
            wish.head = numbers.empty() ? 0 : numbers[0];
            wish.places.assign(numbers.begin() + (numbers.empty() ? 0 : 1), numbers.end());
        }
        wish_scope scope(std::move(wish));
        return llama_state_seq_set_data_ext(
                   context, bytes + section->offset, section->size, slot_id,
                   segment ? LLAMA_STATE_SEQ_FLAGS_NONE : partial_flags()) == section->size;
    };
    if (!put(target, kv_section_type::target, kv_section_type::target_places) ||
        !put(draft, kv_section_type::draft, kv_section_type::draft_places)) {
        return false;
    }
    const kv_section * pending = content(kv_section_type::speculative);
    if (speculative && !segment) {
        const uint8_t * data = bytes + (pending ? pending->offset : 0);
        common_speculative_set_state(
            speculative, slot_id, std::vector<uint8_t>(data, data + (pending ? pending->size : 0)));
    }
    return true;
}

} // namespace llama_ai
