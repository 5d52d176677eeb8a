// Which experts stay in memory. Pure: no clock, no files; the owner of the memory decides what is
// resident and what may go. A unit is one expert of one layer: unit = layer * n_expert + expert.
//
// The score of a unit is recency and frequency in one number: each use adds 1, and what was added
// halves every `half_life` tokens. A short half-life is nearly LRU, a long one nearly LFU; which is
// better depends on the model and on what it is used for (benchmarks/experts.md), so a few
// half-lives are kept side by side, each with a small imagined cache over a sample of the layers,
// and the one with the fewest imagined misses decides.
#pragma once

#include "expert_routing.h"

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

namespace llama_ai {

// Units in memory, the one with the lowest score first, without looking at all of them for each
// victim: a queue in which stale entries are dropped or put right when they come up. Relies on
// scores that change only upwards between two calls of rescored().
class expert_queue {
public:
    explicit expert_queue(int n_units);

    void add(int unit, double score); // became resident
    void remove(int unit);            // is not resident any more
    bool contains(int unit) const {
        return resident[unit];
    }
    int size() const {
        return count;
    }
    // Makes the queue anew: scores changed in another way.
    void rescored(const std::vector<double> & scores);

    // The resident unit with the lowest score for which evictable(unit) is true, or -1. It stays
    // resident until remove().
    template <typename Evictable>
    int pick(const std::vector<double> & scores, Evictable && evictable) {
        skipped.clear();
        int found = -1;
        while (found < 0 && !queue.empty()) {
            entry top = queue.top();
            queue.pop();
            if (!resident[top.unit] || top.serial != serials[top.unit]) {
                continue; // left, or left and came back
            }
            if (scores[top.unit] > top.score) {
                top.score = scores[top.unit];
                queue.push(top);
                continue;
            }
            skipped.push_back(top);
            if (evictable(top.unit)) {
                found = top.unit;
            }
        }
        for (const entry & one : skipped) {
            queue.push(one);
        }
        return found;
    }

private:
    struct entry {
        double score;
        int unit;
        uint32_t serial;
        bool operator<(const entry & other) const { // std::priority_queue gives the greatest
            return score != other.score ? score > other.score : unit > other.unit;
        }
    };
    std::priority_queue<entry> queue;
    std::vector<entry> skipped;
    std::vector<uint8_t> resident;
    std::vector<uint32_t> serials;
    int count = 0;
};

struct expert_policy_options {
    // Chosen by benchmarks/expert_policy.py. The first decides until there is something to compare.
    std::vector<double> half_lives_tokens = {32, 8, 256};
    // Of how many units there is room for. Not positive: the first half-life decides for ever.
    int budget_units = 0;
};

// Not synchronised: the caller's lock guards it.
class expert_policy {
public:
    expert_policy(int n_layer, int n_expert, const expert_policy_options & options = {});
    ~expert_policy();

    // What a layer's router chose, once a layer and ubatch, layers ascending: a layer that is not
    // greater than the last one begins a new ubatch. Call it before making room for what it wants.
    // Ignores warm-up.
    void used(const expert_routing & routing);

    // Higher stays. 0: never used nor seeded.
    double score(int unit) const {
        return scores()[unit];
    }
    double score(int layer, int expert) const {
        return score(unit(layer, expert));
    }
    // From persisted statistics, before the first use: how often a token chooses it, 0..1
    // (expert_stats::rates).
    void seed(int layer, int expert, double rate);

    // What became resident and what left, and who goes next: the resident unit with the lowest
    // score for which evictable(unit) is true, or -1 when there is none. It stays resident until
    // evicted(). O(log units).
    void loaded(int unit);
    void evicted(int unit);
    template <typename Evictable>
    int victim(Evictable && evictable) {
        if (queue_generation != generation) {
            queue.rescored(scores());
            queue_generation = generation;
        }
        return queue.pick(scores(), evictable);
    }
    int resident() const {
        return queue.size();
    }

    int n_units() const {
        return (int) candidates[0].scores.size();
    }
    int unit(int layer, int expert) const {
        return layer * n_expert + expert;
    }
    // The half-life that decides now.
    double half_life_tokens() const {
        return candidates[active].half_life;
    }

private:
    struct candidate {
        double half_life = 0;
        double weight = 1; // what a use now adds: 2^(tokens since the last rescaling / half-life)
        std::vector<double> scores;
        std::unique_ptr<expert_queue> imagined; // units of sampled layers
        double misses = 0;                      // moving sum
    };

    const std::vector<double> & scores() const {
        return candidates[active].scores;
    }
    static double growth(const candidate & one, int tokens);
    void advance(int tokens);
    void imagine(const expert_routing & routing);
    void choose();
    bool sampled(int layer) const;

    int n_layer, n_expert;
    int budget_units;
    std::vector<candidate> candidates;
    size_t active = 0;
    uint64_t generation = 0, queue_generation = 0;
    expert_queue queue;
    int last_layer = -1, last_tokens = 0;
    // The imagined caches.
    std::vector<uint8_t> layer_seen; // layers with experts, known after the first ubatch
    int layers_seen = 0;
    bool all_seen = false;
    int imagined_units = 0;
    int tokens_since_choice = 0;
    std::vector<uint8_t> wanted; // [n_expert] of the layer at hand
};

} // namespace llama_ai
