#include "check.h"
#include "expert_policy.h"
#include "expert_samples.h"

#include <cmath>

using namespace llama_ai;

static void use(expert_policy & policy, int layer, std::vector<int32_t> experts, int n_tokens = 1) {
    sample_routing one(layer, 16, n_tokens, std::move(experts));
    policy.used(one.routing);
}

static bool near(double a, double b) {
    return std::fabs(a - b) <= 1e-9 * std::fabs(b);
}

// A use counts half after the half-life, and uses add up.
static void scores() {
    expert_policy_options options;
    options.half_lives_tokens = {8};
    expert_policy policy(1, 16, options);
    CHECK(policy.score(0, 3) == 0);
    use(policy, 0, {3, 4});
    const double one = policy.score(0, 3);
    CHECK(one > 0 && policy.score(0, 4) == one && policy.score(0, 5) == 0);
    for (int i = 0; i < 8; i++) {
        use(policy, 0, {5, 6});
    }
    use(policy, 0, {7, 8});
    // Nine tokens later a use adds 2^(9/8) as much; scores do not change by themselves.
    CHECK(near(policy.score(0, 7), one * std::exp2(9.0 / 8)));
    CHECK(policy.score(0, 3) == one);
    use(policy, 0, {3, 8});
    CHECK(near(policy.score(0, 3), one * (1 + std::exp2(10.0 / 8))));
}

// Tokens of one ubatch count as the same tokens one after the other do.
static void ubatch_like_tokens() {
    expert_policy together(2, 16), apart(2, 16);
    sample_numbers random(5);
    for (int round = 0; round < 20; round++) {
        const int n = 1 + random.below(40);
        std::vector<std::vector<int32_t>> all(2);
        for (int token = 0; token < n; token++) {
            for (int layer = 0; layer < 2; layer++) {
                const auto chosen = random.choice(3, 16);
                use(apart, layer, chosen);
                all[layer].insert(all[layer].end(), chosen.begin(), chosen.end());
            }
        }
        use(together, 0, all[0], n);
        use(together, 1, all[1], n);
    }
    for (int unit = 0; unit < 32; unit++) {
        // Up to what is called long past, and to when the last token counts.
        CHECK(std::fabs(together.score(unit) / apart.score(unit) - 1) < 1e-6);
    }
}

// Warm-up selects everything and changes nothing.
static void warmup() {
    expert_policy policy(1, 4);
    sample_routing all(0, 4, 1, {0, 1, 2, 3});
    policy.used(all.routing);
    for (int unit = 0; unit < 4; unit++) {
        CHECK(policy.score(unit) == 0);
    }
}

// A hundred thousand tokens, long prompts among them: finite, and the order is right.
static void long_runs() {
    expert_policy policy(1, 16);
    for (int i = 0; i < 100000; i++) {
        use(policy, 0, {i % 4, 8});
    }
    std::vector<int32_t> prompt;
    for (int i = 0; i < 20000; i++) {
        prompt.insert(prompt.end(), {9, 10});
    }
    use(policy, 0, prompt, 20000);
    use(policy, 0, {11, 9});
    for (int unit = 0; unit < 16; unit++) {
        CHECK(std::isfinite(policy.score(unit)));
    }
    CHECK(policy.score(9) > policy.score(10) && policy.score(10) > policy.score(8));
    CHECK(policy.score(11) > policy.score(8));
}

static void victims() {
    expert_policy policy(2, 16);
    CHECK(policy.victim([](int) { return true; }) == -1);
    use(policy, 0, {1, 2});
    use(policy, 1, {1, 2});
    use(policy, 0, {1, 3});
    for (const int unit : {1, 2, 3, 17}) {
        policy.loaded(unit);
    }
    policy.loaded(1); // twice is once
    CHECK(policy.resident() == 4);
    CHECK(policy.victim([](int) { return false; }) == -1);
    CHECK(policy.victim([](int) { return true; }) == 2);
    CHECK(policy.victim([](int) { return true; }) == 2); // asking does not take it
    CHECK(policy.victim([](int unit) { return unit != 2; }) == 17);
    use(policy, 1, {1, 5});
    use(policy, 0, {2, 3}); // 2 was used again: what the queue says of it is old
    policy.evicted(1);
    CHECK(policy.resident() == 3);
    CHECK(policy.victim([](int) { return true; }) == 17);
    policy.evicted(17);
    CHECK(policy.victim([](int) { return true; }) == 2);
    policy.loaded(1);
    CHECK(policy.resident() == 3);
    policy.seed(0, 2, 0.9);
    policy.seed(0, 3, 0.9);
    CHECK(policy.victim([](int) { return true; }) == 1);
}

// Against a scan of all units, over a random life with seeds, rescaling and changes of half-life.
static void queue_is_exact() {
    expert_policy_options options;
    options.budget_units = 20;
    expert_policy policy(8, 16, options);
    sample_numbers random(9);
    std::vector<bool> resident(8 * 16);
    for (int step = 0; step < 30000; step++) {
        const int layer = step % 8;
        auto chosen = random.choice(2, 16);
        if (step > 10000) {
            chosen = random.choice(2, 4);
        }
        use(policy, layer, chosen);
        for (const int32_t expert : chosen) {
            const int unit = policy.unit(layer, expert);
            if (resident[unit]) {
                continue;
            }
            const auto evictable = [&](int other) { return other / 16 != layer; };
            if (policy.resident() == 20) {
                const int victim = policy.victim(evictable);
                for (int other = 0; other < 8 * 16; other++) {
                    CHECK(!resident[other] || !evictable(other) ||
                          policy.score(other) >= policy.score(victim));
                }
                CHECK(resident[victim] && evictable(victim));
                policy.evicted(victim);
                resident[victim] = false;
            }
            policy.loaded(unit);
            resident[unit] = true;
        }
    }
}

// The half-life follows what the routing is like: long where the same experts are always liked,
// short where the liked ones change.
static void half_life_follows() {
    expert_policy_options options;
    options.half_lives_tokens = {16, 4, 256};
    options.budget_units = 8 * 5;
    expert_policy policy(8, 16, options);
    sample_numbers random(3);
    CHECK(policy.half_life_tokens() == 16);
    const auto run = [&](int tokens, int period) {
        for (int token = 0; token < tokens; token++) {
            const int base = period ? token / period * 5 : 0;
            for (int layer = 0; layer < 8; layer++) {
                // Four liked experts, and any.
                const int liked = (base + random.below(4)) % 16;
                int other = random.below(16);
                other = other == liked ? (other + 1) % 16 : other;
                use(policy, layer, {liked, other});
            }
        }
    };
    run(2000, 0);
    CHECK(policy.half_life_tokens() == 256);
    run(2000, 12);
    CHECK(policy.half_life_tokens() == 4);
}

int main() {
    scores();
    ubatch_like_tokens();
    warmup();
    long_runs();
    victims();
    queue_is_exact();
    half_life_follows();
    return 0;
}
