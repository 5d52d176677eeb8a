// Guesses that come true are read before they are asked for; guesses that do not come true stop.

#include "expert_ahead.h"
#include "expert_cache_samples.h"

#include <thread>

using namespace llama_ai;

static const int n_expert = 8, n_embd = 8, n_layer = 3;

// One token: layer 0 chooses 0, and sees an input that points to `guess` in layer 1, which then
// chooses `then`.
static void token(expert_cache & cache, expert_ahead & ahead, int guess, int then) {
    unsigned seed = 1;
    for (int layer = 0; layer < n_layer; layer++) {
        sample_routing chosen(layer, n_expert, 1, 1, seed);
        chosen.ids = {layer == 1 ? then : 0};
        std::fill(chosen.rows.begin(), chosen.rows.end(), 0);
        chosen.rows[chosen.ids[0]] = 1;
        chosen.routing.ids = chosen.ids.data();
        chosen.routing.rows = chosen.rows.data();
        for (const int index : cache.layout().layers[layer].matrices) {
            cache.need(index, chosen.routing, 1);
            if (cache.at_layer_start()) {
                float input[n_embd] = {};
                input[layer == 0 ? guess : 0] = 1;
                ahead.chosen(chosen.routing, input, n_embd);
            }
            cache.slice(index, chosen.ids[0], 0);
        }
        // The thread beside is fast in comparison with a real layer.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::string error;
    CHECK(cache.finish(error));
}

static expert_early_router same_as_input() {
    std::vector<float> rows(n_expert * n_embd);
    for (int expert = 0; expert < n_expert; expert++) {
        rows[expert * n_embd + expert] = 1;
    }
    expert_early_router router(n_layer, n_expert);
    router.set_router(1, rows.data(), n_embd);
    return router;
}

int main() {
    sample_model model(n_layer, n_expert, 4096, 0, 4096);
    expert_cache_options options;
    options.budget_bytes = 5 * 3 * 4096; // so that nothing of layer 1 stays for long
    {
        auto cache = model.cache(options);
        expert_ahead ahead(*cache, same_as_input());
        for (int i = 0; i < 60; i++) {
            token(*cache, ahead, 1 + i % 7, 1 + i % 7);
        }
        const auto counts = cache->counters();
        CHECK(counts.predicted > 20);
        CHECK(counts.predicted_used > counts.predicted / 2);
    }
    {
        auto cache = model.cache(options);
        expert_ahead ahead(*cache, same_as_input());
        for (int i = 0; i < 40; i++) {
            token(*cache, ahead, 1 + i % 7, 1 + (i + 3) % 7);
        }
        const auto learned = cache->counters();
        for (int i = 0; i < 40; i++) {
            token(*cache, ahead, 1 + i % 7, 1 + (i + 3) % 7);
        }
        const auto after = cache->counters();
        CHECK(after.predicted_used <= after.predicted / 2);
        CHECK(after.predicted - learned.predicted <= 2);
    }
    return 0;
}
