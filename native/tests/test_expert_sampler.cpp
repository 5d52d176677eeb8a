// A graph like a model's, computed by the CPU backend through the scheduler.

#include "check.h"
#include "expert_sampler.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <vector>

using namespace llama_ai;

static const int n_embd = 32, n_ff = 48, n_expert = 8, n_used = 2, n_layer = 3;

struct seen_routing {
    int layer, n_tokens;
    std::vector<int32_t> ids;
};

// The values that decide: token t in layer l takes the experts with the greatest of these.
static float preference(int layer, int token, int expert) {
    return (float) ((expert * 37 + token * 11 + layer * 5) % 101) / 10;
}

static std::vector<int32_t> expected(int layer, int token) {
    std::vector<int32_t> all(n_expert);
    for (int i = 0; i < n_expert; i++) {
        all[i] = i;
    }
    std::sort(all.begin(), all.end(), [&](int a, int b) {
        return preference(layer, token, a) > preference(layer, token, b);
    });
    all.resize(n_used);
    return all;
}

static bool want = true;

class model {
public:
    model() : backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
        CHECK(backend != nullptr);
        ggml_init_params params = {ggml_tensor_overhead() * 64, nullptr, true};
        weights = ggml_init(params);
        for (int layer = 0; layer < n_layer; layer++) {
            for (const char * part : {"up", "down"}) {
                const bool up = part[0] == 'u';
                ggml_tensor * tensor = ggml_new_tensor_3d(
                    weights, GGML_TYPE_F32, up ? n_embd : n_ff, up ? n_ff : n_embd, n_expert);
                ggml_format_name(tensor, "blk.%d.ffn_%s_exps.weight", layer + 4, part);
                experts.push_back(tensor);
            }
        }
        buffer = ggml_backend_alloc_ctx_tensors(weights, backend);
        ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_buffer_clear(buffer, 0);
        sched = ggml_backend_sched_new(&backend, nullptr, 1, 512, false, false);
    }
    ~model() {
        ggml_backend_sched_free(sched);
        ggml_backend_buffer_free(buffer);
        ggml_free(weights);
        ggml_backend_free(backend);
    }

    void compute(expert_sampler & sampler, int n_tokens) {
        ggml_init_params params = {ggml_tensor_overhead() * 512 + ggml_graph_overhead(), nullptr,
                                   true};
        ggml_context * context = ggml_init(params);
        ggml_cgraph * graph = ggml_new_graph(context);
        ggml_tensor * state = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_embd, n_tokens);
        ggml_set_input(state);
        std::vector<ggml_tensor *> preferences;
        for (int layer = 0; layer < n_layer; layer++) {
            ggml_tensor * values = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_expert, n_tokens);
            ggml_set_input(values);
            preferences.push_back(values);
            ggml_tensor * chosen =
                ggml_argsort_top_k(context, ggml_scale(context, values, 2), n_used);
            ggml_tensor * input = ggml_reshape_3d(context, state, n_embd, 1, n_tokens);
            ggml_tensor * up = ggml_mul_mat_id(context, experts[2 * layer], input, chosen);
            ggml_tensor * down = ggml_mul_mat_id(context, experts[2 * layer + 1], up, chosen);
            ggml_tensor * one = ggml_view_2d(context, down, n_embd, n_tokens, down->nb[2], 0);
            state = ggml_add(context, state, one);
        }
        ggml_build_forward_expand(graph, state);
        ggml_backend_sched_reset(sched);
        CHECK(ggml_backend_sched_alloc_graph(sched, graph));
        for (int layer = 0; layer < n_layer; layer++) {
            std::vector<float> values;
            for (int token = 0; token < n_tokens; token++) {
                for (int expert = 0; expert < n_expert; expert++) {
                    values.push_back(preference(layer, token, expert));
                }
            }
            ggml_backend_tensor_set(preferences[layer], values.data(), 0,
                                    values.size() * sizeof(float));
        }
        sampler.before(sched, want);
        CHECK(ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_SUCCESS);
        ggml_free(context);
    }

    ggml_backend_sched_t sched = nullptr;

private:
    ggml_backend_t backend;
    ggml_context * weights = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    std::vector<ggml_tensor *> experts;
};

int main() {
    ggml_backend_load_all();
    model one, other;
    std::vector<seen_routing> seen;
    const auto record = [&](const expert_routing & routing) {
        CHECK(routing.n_expert == n_expert && routing.n_used == n_used);
        CHECK(routing.sample_every == 3);
        seen_routing now = {routing.layer, routing.n_tokens, {}};
        int64_t rows = 0;
        for (int expert = 0; expert < n_expert; expert++) {
            rows += routing.rows[expert];
        }
        CHECK(rows == (int64_t) n_used * routing.n_tokens);
        for (int token = 0; token < routing.n_tokens; token++) {
            for (int k = 0; k < n_used; k++) {
                now.ids.push_back(routing.expert(token, k));
            }
        }
        seen.push_back(now);
    };
    // One computation of three is looked at, each layer once, and what is seen is right.
    expert_sampler sampler(3, record, true);
    for (const int n_tokens : {1, 5, 1, 5, 1, 1, 40}) {
        one.compute(sampler, n_tokens);
        other.compute(sampler, n_tokens); // another model's scheduler: never looked at
    }
    const std::vector<int> looked_at = {1, 5, 40};
    CHECK(seen.size() == looked_at.size() * n_layer);
    for (size_t i = 0; i < seen.size(); i++) {
        const int layer = (int) i % n_layer;
        CHECK(seen[i].layer == layer + 4 && seen[i].n_tokens == looked_at[i / n_layer]);
        for (int token = 0; token < seen[i].n_tokens; token++) {
            const auto right = expected(layer, token);
            CHECK(std::equal(right.begin(), right.end(), seen[i].ids.begin() + token * n_used));
        }
    }
    // While nobody wants to know nothing is looked at, not even what was to be.
    seen.clear();
    want = false;
    for (int i = 0; i < 6; i++) {
        one.compute(sampler, 1);
    }
    CHECK(seen.empty());
    want = true;
    one.compute(sampler, 1);
    one.compute(sampler, 1);
    one.compute(sampler, 1);
    CHECK(seen.size() == n_layer);
    want = false;
    one.compute(sampler, 1);
    CHECK(seen.size() == n_layer);
    want = true;
    // Experts in host memory are the other hook's.
    seen.clear();
    expert_sampler gpu_only(1, record);
    for (int i = 0; i < 10; i++) {
        one.compute(gpu_only, 1);
    }
    CHECK(seen.empty());
    return 0;
}
