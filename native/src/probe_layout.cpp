#include "probe_layout.h"

#include "arg.h"
#include "speculative.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <stdexcept>

using json = nlohmann::json;

namespace llama_ai {

// The flags that change how much memory is needed, and where: those that matter to the contexts
// only, and those that matter to the loading of a model too.
static const std::set<std::string> context_keys = {
    "batch_size",          "cache_type_k",      "cache_type_v",      "ctx_size",
    "embeddings",          "flash_attn",        "kv_offload",        "kv_unified",
    "kv_unified_per_slot", "op_offload",        "parallel",          "pooling",
    "rope_freq_base",      "rope_freq_scale",   "rope_scale",        "rope_scaling",
    "spec_draft_n_max",    "spec_draft_type_k", "spec_draft_type_v", "swa_full",
    "ubatch_size",         "yarn_orig_ctx",
};
static const std::set<std::string> model_keys = {
    "cpu_moe",
    "device",
    "gpu_layers",
    "lazy_mode",
    "load_mode",
    "main_gpu",
    "n_cpu_ffn",
    "n_cpu_moe",
    "no_host",
    "override_kv",
    "override_tensor",
    "repack",
    "rpc",
    "spec_draft_cpu_moe",
    "spec_draft_device",
    "spec_draft_model",
    "spec_draft_n_cpu_moe",
    "spec_draft_ngl",
    "spec_draft_override_tensor",
    "spec_type",
    "split_mode",
    "tensor_split",
};

static std::string as_text(const json & value) {
    if (value.is_string()) {
        return value.get<std::string>();
    }
    if (value.is_number()) {
        return value.dump();
    }
    if (value.is_array()) {
        std::string text;
        for (const auto & item : value) {
            text += (text.empty() ? "" : ",") + as_text(item);
        }
        return text;
    }
    throw std::invalid_argument("expected a string, a number or a list");
}

static void apply(common_params_context & context, const std::string & key, const json & value) {
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    const auto option = std::find_if(
        context.options.begin(), context.options.end(), [&](const common_arg & candidate) {
            return std::any_of(candidate.args.begin(), candidate.args.end(),
                               [&](const char * name) { return flag == name; });
        });
    if (option == context.options.end()) {
        throw std::invalid_argument("this engine has no " + flag);
    }
    if (option->handler_bool || option->handler_void) {
        if (!value.is_boolean()) {
            throw std::invalid_argument("expected true or false");
        }
        if (option->handler_bool) {
            option->handler_bool(context.params, value.get<bool>());
        } else if (value.get<bool>()) {
            option->handler_void(context.params);
        }
    } else if (option->handler_int) {
        if (value.is_string() || !value.is_number_integer()) {
            throw std::invalid_argument("expected a whole number");
        }
        option->handler_int(context.params, value.get<int>());
    } else if (option->handler_string) {
        const auto text = as_text(value);
        if (!text.empty()) {
            option->handler_string(context.params, text);
        }
    } else {
        throw std::invalid_argument("takes two values, which a layout cannot give");
    }
}

// What the server does between parsing and loading.
static void as_the_server_does(common_params & params) {
    if (params.n_parallel < 0) {
        params.n_parallel = 4;
        params.kv_unified = true;
    }
    if (params.kv_unified_per_slot > 0 && params.n_ctx == 0) {
        params.n_ctx = params.n_parallel * params.kv_unified_per_slot;
    }
    if (params.embedding && params.n_batch > params.n_ubatch) {
        params.n_batch = params.n_ubatch;
    }
    auto & types = params.speculative.types;
    if (params.speculative.has_dft() &&
        types == std::vector<common_speculative_type>{COMMON_SPECULATIVE_TYPE_NONE}) {
        const auto found =
            common_speculative_types_from_gguf(params.speculative.draft.mparams.path);
        if (!found.empty()) {
            types = found;
        }
    }
    const bool pooled = params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED &&
                        params.pooling_type != LLAMA_POOLING_TYPE_NONE;
    if (params.embedding || pooled) {
        params.n_outputs_max = params.n_batch;
        params.n_outputs_max_per_seq = 1;
    } else {
        const auto limits = common_speculative_get_output_limits(
            params.n_batch, params.n_parallel, common_speculative_n_max(&params.speculative));
        params.n_outputs_max = std::max(1, limits.total);
        params.n_outputs_max_per_seq = std::max(1, limits.per_seq);
    }
}

std::string model_key_of_layout(const json & layout) {
    json key = json::object();
    for (const auto & entry : layout.items()) {
        if (model_keys.count(entry.key()) != 0) {
            key[entry.key()] = entry.value();
        }
    }
    return key.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::unique_ptr<common_params> params_of_layout(const std::string & model, const json & layout) {
    if (!layout.is_object()) {
        throw std::invalid_argument("a layout is an object");
    }
    auto result = std::make_unique<common_params>();
    auto & params = *result;
    auto context = common_params_parser_init(params, LLAMA_EXAMPLE_SERVER);
    std::vector<std::string> keys;
    for (const auto & entry : layout.items()) {
        keys.push_back(entry.key());
    }
    // RPC devices exist only after `rpc`; everything else may come in any order.
    std::stable_partition(keys.begin(), keys.end(),
                          [](const std::string & key) { return key == "rpc"; });
    for (const auto & key : keys) {
        if (key == "name" || layout[key].is_null()) {
            continue;
        }
        if (context_keys.count(key) == 0 && model_keys.count(key) == 0) {
            throw std::invalid_argument(key + ": not a setting that changes memory");
        }
        try {
            apply(context, key, layout[key]);
        } catch (const std::exception & error) {
            throw std::invalid_argument(key + ": " + error.what());
        }
    }
    params.model.path = model;
    if (!params.kv_overrides.empty()) {
        params.kv_overrides.emplace_back();
        params.kv_overrides.back().key[0] = 0;
    }
    for (auto * overrides :
         {&params.tensor_buft_overrides, &params.speculative.draft.tensor_buft_overrides}) {
        if (!overrides->empty()) {
            overrides->push_back({nullptr, nullptr});
        }
    }
    as_the_server_does(params);
    return result;
}

} // namespace llama_ai
