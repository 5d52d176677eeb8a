// What the router of one layer chose for one ubatch: what every part of the expert code looks at.
#pragma once

#include <cstdint>

namespace llama_ai {

struct expert_routing {
    int layer = 0;
    int n_expert = 0;
    int n_used = 0; // experts a token
    int n_tokens = 0;
    const int64_t * rows = nullptr; // [n_expert] tokens that chose the expert; may be null
    // The experts of token t are ids[t * ids_stride + k] for k < n_used, best first. Never null.
    const int32_t * ids = nullptr;
    int64_t ids_stride = 0; // in elements
    int sample_every = 1;   // one computation of so many is looked at

    int32_t expert(int token, int k) const {
        return ids[token * ids_stride + k];
    }

    // Upstream's warm-up run selects every expert for every token: it says nothing about use. (A
    // model that always uses all of its experts has nothing to learn either.)
    bool is_warmup() const {
        return n_used >= n_expert;
    }
};

} // namespace llama_ai
