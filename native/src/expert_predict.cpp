#include "expert_predict.h"

#include <algorithm>
#include <cmath>

namespace llama_ai {

// Tokens of a ubatch that are looked at for pairs.
static const int max_sampled_tokens = 8;
// A row is halved when its expert was seen so often: what lies a few thousand tokens back fades,
// and 16 bits suffice.
static const uint16_t row_full = 4096;

static std::vector<expert_guess> best(std::vector<expert_guess> guesses, int k) {
    const size_t n = std::min(guesses.size(), (size_t) std::max(k, 0));
    std::partial_sort(guesses.begin(), guesses.begin() + n, guesses.end(),
                      [](const expert_guess & a, const expert_guess & b) {
                          return a.probability != b.probability ? a.probability > b.probability
                                                                : a.expert < b.expert;
                      });
    guesses.resize(n);
    return guesses;
}

expert_coactivation::expert_coactivation(int n_layer, int n_expert, size_t max_bytes)
    : n_layer(n_layer), n_expert(n_expert), followers(n_layer, -1) {
    const size_t rows = (size_t) n_layer * n_expert;
    if (rows * (n_expert + 1) * sizeof(uint16_t) <= max_bytes) {
        pairs.resize(rows * n_expert);
        seen_counts.resize(rows);
    }
}

size_t expert_coactivation::bytes() const {
    return (pairs.size() + seen_counts.size()) * sizeof(uint16_t);
}

void expert_coactivation::reset() {
    std::fill(pairs.begin(), pairs.end(), 0);
    std::fill(seen_counts.begin(), seen_counts.end(), 0);
    last_layer = -1;
}

void expert_coactivation::observe(const expert_routing & routing) {
    if (!enabled()) {
        return;
    }
    const int taken = std::min(routing.n_tokens, max_sampled_tokens);
    const auto token = [&](int i) { return (int) ((int64_t) i * routing.n_tokens / taken); };
    if (last_layer >= 0 && routing.layer > last_layer && routing.n_tokens == last_tokens) {
        followers[last_layer] = routing.layer;
        for (int i = 0; i < taken; i++) {
            for (int before = 0; before < last_used; before++) {
                const int32_t a = last[(size_t) i * last_used + before];
                uint16_t * row = &pairs[index(last_layer, a) * n_expert];
                for (int k = 0; k < routing.n_used; k++) {
                    row[routing.expert(token(i), k)]++;
                }
                if (++seen_counts[index(last_layer, a)] >= row_full) {
                    seen_counts[index(last_layer, a)] /= 2;
                    for (int b = 0; b < n_expert; b++) {
                        row[b] /= 2;
                    }
                }
            }
        }
    }
    last_layer = routing.layer;
    last_tokens = routing.n_tokens;
    last_used = routing.n_used;
    last.resize((size_t) taken * routing.n_used);
    for (int i = 0; i < taken; i++) {
        for (int k = 0; k < routing.n_used; k++) {
            last[(size_t) i * routing.n_used + k] = routing.expert(token(i), k);
        }
    }
}

std::vector<expert_guess> expert_coactivation::predict(int layer, const int32_t * chosen,
                                                       int n_chosen, int k) const {
    if (!enabled() || followers[layer] < 0) {
        return {};
    }
    std::vector<float> sums(n_expert);
    int rows = 0;
    for (int i = 0; i < n_chosen; i++) {
        const uint16_t times = seen_counts[index(layer, chosen[i])];
        if (times == 0) {
            continue;
        }
        const uint16_t * row = &pairs[index(layer, chosen[i]) * n_expert];
        const float share = 1.0f / times;
        for (int b = 0; b < n_expert; b++) {
            sums[b] += row[b] * share;
        }
        rows++;
    }
    std::vector<expert_guess> guesses;
    for (int b = 0; b < n_expert; b++) {
        if (sums[b] > 0) {
            guesses.push_back({b, sums[b] / rows});
        }
    }
    return best(std::move(guesses), k);
}

uint16_t expert_coactivation::seen(int layer, int a) const {
    return enabled() ? seen_counts[index(layer, a)] : 0;
}

const uint16_t * expert_coactivation::row(int layer, int a) const {
    return &pairs[index(layer, a) * n_expert];
}

void expert_coactivation::set(int layer, int next_layer, int a, uint16_t seen,
                              const std::vector<uint16_t> & row) {
    if (!enabled()) {
        return;
    }
    followers[layer] = next_layer;
    seen_counts[index(layer, a)] = std::min(seen, row_full);
    std::copy(row.begin(), row.end(), pairs.begin() + index(layer, a) * n_expert);
}

expert_early_router::expert_early_router(int n_layer, int n_expert)
    : n_expert(n_expert), routers(n_layer) {}

void expert_early_router::set_router(int layer, const float * weights, int n_embd,
                                     const float * bias, const float * norm,
                                     const float * norm_before) {
    router & one = routers[layer];
    one.n_embd = n_embd;
    one.weights.assign(weights, weights + (size_t) n_expert * n_embd);
    if (norm && norm_before) {
        for (int expert = 0; expert < n_expert; expert++) {
            for (int i = 0; i < n_embd; i++) {
                // A norm's weight near 0 cannot be undone: that channel says nothing then.
                const float before = norm_before[i];
                one.weights[(size_t) expert * n_embd + i] *=
                    std::fabs(before) > 1e-6f ? norm[i] / before : 0.0f;
            }
        }
    }
    one.bias.assign(n_expert, 0.0f);
    if (bias) {
        one.bias.assign(bias, bias + n_expert);
    }
}

// Sums in lanes, which the compiler turns into vector instructions without -ffast-math.
static float dot(const float * a, const float * b, int n) {
    const int lanes = 32;
    float sums[lanes] = {};
    int i = 0;
    for (; i + lanes <= n; i += lanes) {
        for (int lane = 0; lane < lanes; lane++) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    float sum = 0;
    for (const float lane : sums) {
        sum += lane;
    }
    for (; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

std::vector<expert_guess> expert_early_router::predict(int layer, const float * ffn_input,
                                                       int k) const {
    const router & one = routers[layer];
    if (one.weights.empty()) {
        return {};
    }
    std::vector<expert_guess> guesses(n_expert);
    float greatest = -INFINITY;
    for (int expert = 0; expert < n_expert; expert++) {
        const float logit = dot(&one.weights[(size_t) expert * one.n_embd], ffn_input, one.n_embd) +
                            one.bias[expert];
        guesses[expert] = {expert, logit};
        greatest = std::max(greatest, logit);
    }
    float sum = 0;
    for (auto & guess : guesses) {
        guess.probability = std::exp(guess.probability - greatest);
        sum += guess.probability;
    }
    for (auto & guess : guesses) {
        guess.probability /= sum;
    }
    return best(std::move(guesses), k);
}

expert_prediction_score::expert_prediction_score(int n_layer)
    : shares((size_t) n_layer * places, 0.5f) {}

void expert_prediction_score::rate(int layer, std::vector<expert_guess> & guesses) const {
    for (size_t i = 0; i < guesses.size(); i++) {
        guesses[i].probability = shares[(size_t) layer * places + std::min<size_t>(i, places - 1)];
    }
}

void expert_prediction_score::settle(int layer, const std::vector<expert_guess> & guesses,
                                     const int32_t * chosen, int n_chosen) {
    for (size_t i = 0; i < guesses.size(); i++) {
        const bool right =
            std::find(chosen, chosen + n_chosen, guesses[i].expert) != chosen + n_chosen;
        float & share = shares[(size_t) layer * places + std::min<size_t>(i, places - 1)];
        share += (right - share) * 0.02f;
        predicted++;
        used += right;
    }
    wanted += n_chosen;
}

} // namespace llama_ai
