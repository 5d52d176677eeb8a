// Which experts the next layer with experts will want, said while this layer computes. Two ways,
// measured against each other in benchmarks/experts.md:
//  - co-activation: which experts of the next layer went with those of this one so far;
//  - the early router: the next layer's router applied to this layer's FFN input, which is close
//    to its own because each layer adds little to the residual stream.
// expert_prediction_score says how often either is right, so that reading ahead is done only where
// it pays.
#pragma once

#include "expert_routing.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llama_ai {

struct expert_guess {
    int expert = 0;
    // Likelier is greater. Co-activation: the mean of the shares seen; early router: the softmax.
    // expert_prediction_score::rate() puts a measured probability in its place.
    float probability = 0;
};

// How often expert b of the next layer was chosen with expert a of this one: 16 bits a pair (24 MiB
// for 48 layers of 512 experts), halved row by row so that old habits fade. Not synchronised.
class expert_coactivation {
public:
    // Takes no memory, and predicts nothing, where max_bytes would not do.
    expert_coactivation(int n_layer, int n_expert, size_t max_bytes);

    // Once a layer and ubatch, layers ascending. Of a ubatch with many tokens a few are taken,
    // evenly spread.
    void observe(const expert_routing & routing);

    // At most k experts of next(layer), likeliest first, given what `layer` chose for one token.
    std::vector<expert_guess> predict(int layer, const int32_t * chosen, int n_chosen, int k) const;
    // The layer with experts that follows, or -1: none was seen yet.
    int next(int layer) const {
        return followers[layer];
    }

    bool enabled() const {
        return !seen_counts.empty();
    }
    size_t bytes() const;
    void reset();

    // For the statistics file: how often expert `a` of `layer` was seen, and with whom
    // ([n_expert], counts of the next layer's experts).
    uint16_t seen(int layer, int a) const;
    const uint16_t * row(int layer, int a) const;
    void set(int layer, int next_layer, int a, uint16_t seen, const std::vector<uint16_t> & row);

private:
    size_t index(int layer, int a) const {
        return (size_t) layer * n_expert + a;
    }

    int n_layer, n_expert;
    std::vector<uint16_t> pairs;       // [n_layer][n_expert][n_expert]
    std::vector<uint16_t> seen_counts; // [n_layer][n_expert]
    std::vector<int> followers;        // [n_layer]
    // What the previous layer chose for the sampled tokens.
    int last_layer = -1, last_tokens = 0, last_used = 0;
    std::vector<int32_t> last;
};

// Const after the set_router() calls, so that several threads may predict.
class expert_early_router {
public:
    expert_early_router(int n_layer, int n_expert);

    // The router of `layer` (ffn_gate_inp): n_expert rows of n_embd floats, copied. `bias`:
    // n_expert floats added to choose (exp_probs_b, ffn_gate_inp.bias), or null. `norm` and
    // `norm_before`: weights of the norms before the FFN of this layer and of the previous layer
    // with experts (n_embd floats): with both, the input is taken from one norm to the other.
    void set_router(int layer, const float * weights, int n_embd, const float * bias = nullptr,
                    const float * norm = nullptr, const float * norm_before = nullptr);
    bool has_router(int layer) const {
        return !routers[layer].weights.empty();
    }

    // At most k experts of `layer`, likeliest first, from the FFN input of one token in the
    // previous layer with experts (n_embd floats). Reads n_expert * n_embd floats: call it beside
    // the computation, not on it.
    std::vector<expert_guess> predict(int layer, const float * ffn_input, int k) const;

private:
    struct router {
        int n_embd = 0;
        std::vector<float> weights;
        std::vector<float> bias;
    };
    int n_expert;
    std::vector<router> routers;
};

// How often guesses come true, by layer and by place in the list. Give it only the guesses that are
// not in memory, for both calls: experts that are there are the popular ones, and come true far
// more often than those for which there is something to read. Not synchronised.
class expert_prediction_score {
public:
    explicit expert_prediction_score(int n_layer);

    // Puts into each guess the share of recent guesses for this layer at its place that came true
    // (0.5 before there were any).
    void rate(int layer, std::vector<expert_guess> & guesses) const;
    // `guesses` for `layer` were made before; `chosen` is what its router then chose.
    void settle(int layer, const std::vector<expert_guess> & guesses, const int32_t * chosen,
                int n_chosen);

    uint64_t predicted = 0; // guesses settled
    uint64_t used = 0;      // of which came true
    uint64_t wanted = 0;    // experts chosen: used / wanted is the recall

private:
    static const int places = 32; // later ones count as the last
    std::vector<float> shares;    // [n_layer][places], moving averages
};

} // namespace llama_ai
