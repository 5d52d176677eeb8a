// Routing for the tests of the expert code.
#pragma once

#include "expert_routing.h"

#include <cstdint>
#include <vector>

struct sample_routing {
    sample_routing(int layer, int n_expert, int n_tokens, std::vector<int32_t> chosen)
        : ids(std::move(chosen)) {
        routing.layer = layer;
        routing.n_expert = n_expert;
        routing.n_tokens = n_tokens;
        routing.n_used = (int) ids.size() / n_tokens;
        routing.ids = ids.data();
        routing.ids_stride = routing.n_used;
    }
    sample_routing(const sample_routing &) = delete;

    std::vector<int32_t> ids;
    llama_ai::expert_routing routing;
};

// The same numbers everywhere.
class sample_numbers {
public:
    explicit sample_numbers(uint64_t seed) : state(seed) {}
    int below(int n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (int) ((state >> 33) % (uint64_t) n);
    }
    // `count` different numbers below n.
    std::vector<int32_t> choice(int count, int n) {
        std::vector<int32_t> all(n);
        for (int i = 0; i < n; i++) {
            all[i] = i;
        }
        for (int i = 0; i < count; i++) {
            std::swap(all[i], all[i + below(n - i)]);
        }
        all.resize(count);
        return all;
    }

private:
    uint64_t state;
};
