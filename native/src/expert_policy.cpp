#include "expert_policy.h"

#include <algorithm>
#include <cmath>

namespace llama_ai {

// Imagined caches see every fourth layer: enough to rank the half-lives, for a quarter of the work.
static const int layer_step = 4;
// A longer ubatch is prefill: it wants nearly everything, whatever is resident.
static const int max_imagined_tokens = 16;
static const int choose_every_tokens = 64;
// How much of the earlier imagined misses still counts: a memory of about 64 / (1 - 0.8) tokens.
static const double misses_kept = 0.8;
// Another half-life takes over when it misses this much less.
static const double better = 0.98;

expert_queue::expert_queue(int n_units) : resident(n_units), serials(n_units) {}

void expert_queue::add(int unit, double score) {
    if (!resident[unit]) {
        resident[unit] = 1;
        count++;
        queue.push({score, unit, ++serials[unit]});
    }
}

void expert_queue::remove(int unit) {
    count -= resident[unit];
    resident[unit] = 0;
}

void expert_queue::rescored(const std::vector<double> & scores) {
    std::vector<entry> entries;
    entries.reserve(count);
    for (size_t unit = 0; unit < resident.size(); unit++) {
        if (resident[unit]) {
            entries.push_back({scores[unit], (int) unit, ++serials[unit]});
        }
    }
    queue = std::priority_queue<entry>(std::less<entry>(), std::move(entries));
}

expert_policy::expert_policy(int n_layer, int n_expert, const expert_policy_options & options)
    : n_layer(n_layer), n_expert(n_expert), budget_units(options.budget_units),
      queue(n_layer * n_expert), layer_seen(n_layer), wanted(n_expert) {
    for (const double half_life : options.half_lives_tokens) {
        candidate one;
        one.half_life = half_life;
        one.scores.resize((size_t) n_layer * n_expert);
        candidates.push_back(std::move(one));
    }
}

expert_policy::~expert_policy() = default;

void expert_policy::seed(int layer, int expert, double rate) {
    for (auto & one : candidates) {
        // What a unit used at this rate for ever would have.
        const double steady = rate / (1 - std::exp2(-1 / one.half_life));
        one.scores[unit(layer, expert)] += steady * one.weight;
    }
    generation++;
}

void expert_policy::loaded(int unit) {
    queue.add(unit, score(unit));
}

void expert_policy::evicted(int unit) {
    queue.remove(unit);
}

// By how much a use counts more after so many tokens. Bounded, so that no ubatch overflows.
double expert_policy::growth(const candidate & one, int tokens) {
    return std::exp2(std::min(tokens / one.half_life, 400.0));
}

void expert_policy::used(const expert_routing & routing) {
    if (routing.is_warmup() || routing.n_tokens <= 0) {
        return;
    }
    if (routing.layer <= last_layer) {
        advance(last_tokens);
        if (!all_seen) {
            all_seen = true;
            const int64_t units = (int64_t) layers_seen * n_expert;
            int layers = 0;
            for (int layer = 0; layer < n_layer; layer++) {
                layers += sampled(layer);
            }
            const int64_t sample = (int64_t) layers * n_expert;
            imagined_units =
                units ? (int) (std::min<int64_t>(budget_units, units) * sample / units) : 0;
        }
    }
    last_layer = routing.layer;
    last_tokens = routing.n_tokens;
    if (!layer_seen[routing.layer]) {
        layer_seen[routing.layer] = 1;
        layers_seen++;
    }
    for (auto & one : candidates) {
        double * scores = one.scores.data() + unit(routing.layer, 0);
        // Each token counts as if it had come alone: the last one most. What is long past by the
        // end of the ubatch adds nothing.
        const double step = std::exp2(-1 / one.half_life);
        double weight = one.weight * growth(one, routing.n_tokens) * step;
        const double least = weight * 0x1p-60;
        for (int token = routing.n_tokens - 1; token >= 0 && weight > least; token--) {
            for (int k = 0; k < routing.n_used; k++) {
                scores[routing.expert(token, k)] += weight;
            }
            weight *= step;
        }
    }
    if (all_seen && routing.n_tokens <= max_imagined_tokens && sampled(routing.layer)) {
        imagine(routing);
    }
}

void expert_policy::advance(int tokens) {
    for (auto & one : candidates) {
        one.weight *= growth(one, tokens);
        if (one.weight > 0x1p400) {
            // What is left of a score after this is 0 for a unit that was not used for hundreds of
            // half-lives.
            for (auto & score : one.scores) {
                score /= one.weight;
            }
            one.weight = 1;
            generation++;
            if (one.imagined) {
                one.imagined->rescored(one.scores);
            }
        }
    }
    if (all_seen && tokens <= max_imagined_tokens) {
        tokens_since_choice += tokens;
        if (tokens_since_choice >= choose_every_tokens) {
            tokens_since_choice = 0;
            choose();
        }
    }
}

bool expert_policy::sampled(int layer) const {
    return layer_seen[layer] && (layers_seen <= layer_step || layer % layer_step == 0);
}

void expert_policy::imagine(const expert_routing & routing) {
    if (imagined_units <= routing.n_used || candidates.size() < 2) {
        return;
    }
    std::fill(wanted.begin(), wanted.end(), 0);
    for (int token = 0; token < routing.n_tokens; token++) {
        for (int k = 0; k < routing.n_used; k++) {
            wanted[routing.expert(token, k)] = 1;
        }
    }
    const int begin = unit(routing.layer, 0);
    const auto free_to_go = [&](int unit) {
        return unit < begin || unit >= begin + n_expert || !wanted[unit - begin];
    };
    for (auto & one : candidates) {
        if (!one.imagined) {
            one.imagined = std::make_unique<expert_queue>(n_units());
        }
        for (int expert = 0; expert < n_expert; expert++) {
            if (!wanted[expert] || one.imagined->contains(begin + expert)) {
                continue;
            }
            one.misses++;
            if (one.imagined->size() >= imagined_units) {
                const int victim = one.imagined->pick(one.scores, free_to_go);
                if (victim < 0) {
                    continue; // more wanted at once than there is room for
                }
                one.imagined->remove(victim);
            }
            one.imagined->add(begin + expert, one.scores[begin + expert]);
        }
    }
}

void expert_policy::choose() {
    size_t best = active;
    for (size_t i = 0; i < candidates.size(); i++) {
        if (candidates[i].misses < candidates[best].misses) {
            best = i;
        }
    }
    if (best != active && candidates[best].misses < better * candidates[active].misses) {
        active = best;
        generation++;
    }
    for (auto & one : candidates) {
        one.misses *= misses_kept;
    }
}

} // namespace llama_ai
