#include "check.h"
#include "expert_predict.h"
#include "expert_samples.h"

#include <algorithm>
#include <cmath>

using namespace llama_ai;

static void co_activation() {
    // Layers 1 and 3 have experts. In layer 3 always go a + 1 and 0 for a chosen in layer 1.
    expert_coactivation pairs(4, 8, 1 << 20);
    CHECK(pairs.enabled() && pairs.bytes() == 4 * 8 * 9 * 2);
    CHECK(pairs.next(1) == -1);
    const int32_t nothing[] = {1};
    CHECK(pairs.predict(1, nothing, 1, 3).empty());
    for (int i = 0; i < 20; i++) {
        const int32_t a = 1 + i % 3;
        sample_routing first(1, 8, 1, {a, 7}), second(3, 8, 1, {a + 1, 0});
        pairs.observe(first.routing);
        pairs.observe(second.routing);
    }
    CHECK(pairs.next(1) == 3 && pairs.next(3) == -1);
    const int32_t chosen[] = {2, 7};
    const auto guesses = pairs.predict(1, chosen, 2, 2);
    CHECK(guesses.size() == 2);
    CHECK(guesses[0].expert == 0 && guesses[0].probability == 1);
    CHECK(guesses[1].expert == 3 && guesses[1].probability > 0.5f && guesses[1].probability < 0.8f);
    CHECK(pairs.seen(1, 7) == 20 && pairs.row(1, 7)[0] == 20 && pairs.row(1, 7)[7] == 0);
    pairs.reset();
    CHECK(pairs.seen(1, 7) == 0 && pairs.predict(1, chosen, 2, 2).empty());
    CHECK(!expert_coactivation(4, 8, 100).enabled());
}

// Counts stay within 16 bits, and a habit that ended fades.
static void fades() {
    expert_coactivation pairs(2, 4, 1 << 20);
    const auto run = [&](int n, int32_t with) {
        for (int i = 0; i < n; i++) {
            sample_routing first(0, 4, 1, {0}), second(1, 4, 1, {with});
            pairs.observe(first.routing);
            pairs.observe(second.routing);
        }
    };
    const int32_t chosen[] = {0};
    run(200000, 1);
    CHECK(pairs.predict(0, chosen, 1, 1)[0].expert == 1);
    CHECK(pairs.row(0, 0)[1] <= pairs.seen(0, 0) && pairs.seen(0, 0) <= 4096);
    run(10000, 2);
    CHECK(pairs.predict(0, chosen, 1, 1)[0].expert == 2);
}

// In a ubatch the pairs are those of the same token.
static void ubatch() {
    expert_coactivation pairs(2, 8, 1 << 20);
    std::vector<int32_t> first, second;
    for (int token = 0; token < 100; token++) {
        first.push_back(token % 4);
        second.push_back(token % 4 + 4);
    }
    sample_routing one(0, 8, 100, first), two(1, 8, 100, second);
    pairs.observe(one.routing);
    pairs.observe(two.routing);
    int seen = 0;
    for (int a = 0; a < 4; a++) {
        CHECK(pairs.row(0, a)[a + 4] == pairs.seen(0, a));
        seen += pairs.seen(0, a);
    }
    CHECK(seen == 8);
}

static void early_router() {
    const int n_embd = 50, n_expert = 8;
    std::vector<float> weights((size_t) n_expert * n_embd), input(n_embd);
    sample_numbers random(4);
    for (auto & weight : weights) {
        weight = (float) (random.below(2001) - 1000) / 1000;
    }
    for (auto & value : input) {
        value = (float) (random.below(2001) - 1000) / 1000;
    }
    std::vector<std::pair<double, int>> logits;
    for (int expert = 0; expert < n_expert; expert++) {
        double sum = 0;
        for (int i = 0; i < n_embd; i++) {
            sum += (double) weights[(size_t) expert * n_embd + i] * input[i];
        }
        logits.push_back({-sum, expert});
    }
    std::sort(logits.begin(), logits.end());
    expert_early_router routers(3, n_expert);
    CHECK(!routers.has_router(2) && routers.predict(2, input.data(), 3).empty());
    routers.set_router(2, weights.data(), n_embd);
    CHECK(routers.has_router(2) && !routers.has_router(1));
    const auto guesses = routers.predict(2, input.data(), 100);
    CHECK(guesses.size() == (size_t) n_expert);
    float sum = 0;
    for (int k = 0; k < n_expert; k++) {
        CHECK(guesses[k].expert == logits[k].second);
        sum += guesses[k].probability;
    }
    CHECK(std::fabs(sum - 1) < 1e-5f);
    CHECK(routers.predict(2, input.data(), 2).size() == 2);

    // A bias moves an expert up; norms are exchanged.
    std::vector<float> bias(n_expert);
    bias[logits.back().second] = 1000;
    routers.set_router(2, weights.data(), n_embd, bias.data());
    CHECK(routers.predict(2, input.data(), 1)[0].expert == logits.back().second);
    std::vector<float> norm(n_embd), before(n_embd), other(n_embd);
    for (int i = 0; i < n_embd; i++) {
        norm[i] = 0.5f + (float) random.below(100) / 100;
        before[i] = 0.5f + (float) random.below(100) / 100;
        other[i] = input[i] / norm[i] * before[i];
    }
    routers.set_router(2, weights.data(), n_embd, nullptr, norm.data(), before.data());
    const auto through_norms = routers.predict(2, other.data(), n_expert);
    for (int k = 0; k < n_expert; k++) {
        CHECK(through_norms[k].expert == logits[k].second);
    }
}

static void scores() {
    expert_prediction_score score(2);
    std::vector<expert_guess> guesses = {{3, 0.1f}, {5, 0.1f}};
    score.rate(1, guesses);
    CHECK(guesses[0].probability == 0.5f);
    const int32_t chosen[] = {3, 4, 6};
    for (int i = 0; i < 300; i++) {
        score.settle(1, guesses, chosen, 3);
    }
    score.rate(1, guesses);
    CHECK(guesses[0].probability > 0.99f && guesses[1].probability < 0.01f);
    CHECK(score.predicted == 600 && score.used == 300 && score.wanted == 900);
    score.rate(0, guesses);
    CHECK(guesses[0].probability == 0.5f);
}

int main() {
    co_activation();
    fades();
    ubatch();
    early_router();
    scores();
    return 0;
}
