#include "expert_sampler.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cstdio>
#include <cstring>

namespace llama_ai {

// After so many computations without a layer on a GPU nothing is looked at any more.
static const int give_up_after = 4;

// "blk.7.ffn_up_exps.weight", or a backend's copy of it ("Vulkan0#blk.7.…#0"): 7, else -1.
static int layer_of(const char * name) {
    const char * at = std::strstr(name, "blk.");
    int layer = -1;
    return at && std::sscanf(at, "blk.%d.ffn_", &layer) == 1 ? layer : -1;
}

// Repacked weights too, which the CPU backend computes and does not call "host".
static bool on_cpu(ggml_backend_buffer_t buffer) {
    const auto device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
    return ggml_backend_buffer_is_host(buffer) ||
           (device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU);
}

expert_sampler::expert_sampler(int every, std::function<void(const expert_routing &)> observe,
                               bool host)
    : every(every), observe(std::move(observe)), host(host) {}

void expert_sampler::before(ggml_backend_sched * sched, bool wanted) {
    if (owner == nullptr) {
        owner = sched;
    }
    if (sched != owner) {
        return;
    }
    if (watching) {
        empty = found > 0 ? 0 : empty + 1;
    }
    const bool now = wanted && empty < give_up_after && --countdown <= 0;
    if (now) {
        countdown = every;
        found = 0;
        last_ids = nullptr;
    }
    // Upstream takes the callback away when it makes a new graph.
    if (now || watching) {
        watching = now;
        ggml_backend_sched_set_eval_callback(
            sched,
            now ? [](ggml_tensor * tensor, bool ask,
                     void * self) { return static_cast<expert_sampler *>(self)->node(tensor, ask); }
                : (ggml_backend_sched_eval_callback) nullptr,
            now ? this : nullptr);
    }
}

bool expert_sampler::node(ggml_tensor * tensor, bool ask) {
    if (!ask) {
        read(tensor);
        return true;
    }
    if (tensor->op != GGML_OP_MUL_MAT_ID || tensor->src[2] == last_ids) {
        return false;
    }
    const ggml_tensor * weights = tensor->src[0];
    if (layer_of(weights->name) < 0 || tensor->src[2]->type != GGML_TYPE_I32 || !weights->buffer ||
        (!host && on_cpu(weights->buffer))) {
        return false;
    }
    last_ids = tensor->src[2];
    return true;
}

void expert_sampler::read(const ggml_tensor * product) {
    const ggml_tensor * chosen = product->src[2];
    const int n_expert = (int) product->src[0]->ne[2];
    ids.resize(ggml_nbytes(chosen) / sizeof(int32_t));
    ggml_backend_tensor_get(chosen, ids.data(), 0, ids.size() * sizeof(int32_t));
    expert_routing routing;
    routing.layer = layer_of(product->src[0]->name);
    routing.n_expert = n_expert;
    routing.n_used = (int) chosen->ne[0];
    routing.n_tokens = (int) chosen->ne[1];
    routing.ids = ids.data();
    routing.ids_stride = (int64_t) (chosen->nb[1] / sizeof(int32_t));
    routing.sample_every = every;
    rows.assign((size_t) n_expert, 0);
    for (int token = 0; token < routing.n_tokens; token++) {
        for (int k = 0; k < routing.n_used; k++) {
            const int32_t expert = routing.expert(token, k);
            if (expert < 0 || expert >= n_expert) {
                return; // not what we took it for
            }
            rows[(size_t) expert]++;
        }
    }
    routing.rows = rows.data();
    found++;
    observe(routing);
}

} // namespace llama_ai
