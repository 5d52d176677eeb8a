#include "probe_measure.h"

#include "llama-ext.h"
#include "speculative.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

using json = nlohmann::json;

namespace llama_ai {

// Memory by GPU; null is the host.
using memory_map = std::map<ggml_backend_dev_t, llama_memory_breakdown_data>;

static bool is_gpu(ggml_backend_dev_t device) {
    if (device == nullptr) {
        return false;
    }
    const auto type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

static memory_map by_device(const llama_context * context) {
    memory_map result;
    for (const auto & [type, memory] : llama_get_memory_breakdown(context)) {
        // A driver's pinned buffers are host memory, and so are the buffers of the CPU that do not
        // say so: they hold repacked weights.
        const auto device = ggml_backend_buft_get_device(type);
        auto & row = result[!ggml_backend_buft_is_host(type) && is_gpu(device) ? device : nullptr];
        row.model += memory.model;
        row.context += memory.context;
        row.compute += memory.compute;
    }
    return result;
}

static json row(ggml_backend_dev_t device, const llama_memory_breakdown_data & memory) {
    size_t free = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    const bool known = total != 0;
    return {
        {"total_bytes", known ? json(total) : json(nullptr)},
        {"free_bytes", known ? json(free) : json(nullptr)},
        {"model_bytes", memory.model},
        {"context_bytes", memory.context},
        {"compute_bytes", memory.compute},
    };
}

static void without_allocation(llama_model_params & params) {
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
}

// The draft's context follows the model's: as many tokens, and none of the recurrent copies.
static memory_map measure_draft(const common_params & params, llama_model * target,
                                llama_context * target_context) {
    const auto & types = params.speculative.types;
    const bool mtp =
        std::find(types.begin(), types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_MTP) != types.end();
    const bool own_model = params.speculative.has_dft();
    if (!mtp && !own_model) {
        return {};
    }
    common_params draft = common_base_params_to_speculative(params);
    auto model_params = common_model_params_to_llama(draft);
    without_allocation(model_params);
    auto context_params = common_context_params_to_llama(draft);
    context_params.ctx_type = mtp ? LLAMA_CONTEXT_TYPE_MTP : context_params.ctx_type;
    context_params.n_ctx = llama_n_ctx(target_context);
    context_params.n_rs_seq = 0;
    context_params.ctx_other = target_context;

    llama_model_ptr loaded;
    if (own_model) {
        loaded.reset(llama_model_load_from_file(draft.model.path.c_str(), model_params));
        if (!loaded) {
            throw std::runtime_error("the engine cannot load the draft model " + draft.model.path);
        }
    }
    const llama_context_ptr context(
        llama_init_from_model(own_model ? loaded.get() : target, context_params));
    if (!context) {
        throw std::runtime_error("the engine cannot make the draft's context");
    }
    auto result = by_device(context.get());
    if (!own_model) {
        for (auto & entry : result) {
            entry.second.model = 0;
        }
    }
    return result;
}

json prober::measure(std::unique_ptr<common_params> params, const std::string & model_key) {
    if (!model || key != model_key) {
        model.reset();
        loaded_with = std::make_unique<common_params>(*params);
        auto model_params = common_model_params_to_llama(*loaded_with);
        without_allocation(model_params);
        model.reset(llama_model_load_from_file(loaded_with->model.path.c_str(), model_params));
        key = model_key;
    }
    if (!model) {
        throw std::runtime_error("the engine cannot load this model");
    }
    const llama_context_ptr context(
        llama_init_from_model(model.get(), common_context_params_to_llama(*params)));
    if (!context) {
        throw std::runtime_error("the engine cannot make a context");
    }
    const auto cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == nullptr) {
        throw std::runtime_error("the CPU backend was not found beside this program");
    }
    auto memory = by_device(context.get());
    auto draft = measure_draft(*params, model.get(), context.get());

    std::vector<ggml_backend_dev_t> gpus;
    for (int i = 0; i < llama_model_n_devices(model.get()); i++) {
        gpus.push_back(llama_model_get_device(model.get(), i));
    }
    for (const auto & entry : draft) { // a draft may lie on a device of its own
        if (entry.first != nullptr &&
            std::find(gpus.begin(), gpus.end(), entry.first) == gpus.end()) {
            gpus.push_back(entry.first);
        }
    }
    const auto full_row = [&](ggml_backend_dev_t device, ggml_backend_dev_t key_of_row) {
        json result = row(device, memory[key_of_row]);
        if (!draft.empty()) {
            const auto & part = draft[key_of_row];
            result["draft"] = {
                {"model_bytes", part.model},
                {"context_bytes", part.context},
                {"compute_bytes", part.compute},
            };
        }
        return result;
    };
    json devices = json::array();
    for (const auto gpu : gpus) {
        json entry = full_row(gpu, gpu);
        entry["name"] = ggml_backend_dev_name(gpu);
        entry["description"] = ggml_backend_dev_description(gpu);
        devices.push_back(entry);
    }
    return {
        {"ctx_size", llama_n_ctx(context.get())},
        {"ctx_size_train", llama_model_n_ctx_train(model.get())},
        {"layers", llama_model_n_layer(model.get())},
        {"experts", llama_model_n_expert(model.get())},
        {"devices", devices},
        {"host", full_row(cpu, nullptr)},
    };
}

} // namespace llama_ai
