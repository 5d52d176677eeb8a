#include "expert_replay.h"

#include "expert_predict.h"
#include "expert_rivals.h"

#include <algorithm>
#include <deque>
#include <stdexcept>

namespace llama_ai {

namespace {

class replayer {
public:
    replayer(const expert_trace & trace, const replay_options & options)
        : trace(trace), options(options), wanted(wanted_units(trace)),
          policy(make_policy(options.policy, trace, wanted, options.budget_units,
                             options.half_lives_tokens)),
          resident(trace.n_layer * trace.n_expert), ready(resident.size()),
          waiting(resident.size()), in_use(resident.size()), ahead(resident.size()),
          just_read(resident.size()), together(trace.n_layer, trace.n_expert, (size_t) 1 << 30),
          score(trace.n_layer), faults(options.policy == "mmap"),
          whole_layers(options.policy == "pr2101"),
          foresees(options.policy == "ours" && options.foresee > 0) {}

    replay_result run() {
        for (size_t i = 0; i < trace.records.size(); i++) {
            record(i);
        }
        result.half_life_tokens = policy->half_life_tokens();
        return result;
    }

private:
    struct guess_list {
        int layer = -1;
        std::vector<expert_guess> all;
        std::vector<expert_guess> absent; // not resident when it was made
    };

    // Makes room and reads. `asked` is when the unit is asked for.
    void load(int unit, double asked, double rate) {
        if (count >= options.budget_units) {
            const auto may_go = [&](int other) {
                return !waiting[other] && !in_use[other] && !ahead[other] && other != unit;
            };
            int victim = -1;
            if (own_layer) {
                victim = policy->victim([&](int other) {
                    return other / trace.n_expert == unit / trace.n_expert && may_go(other);
                });
            }
            if (victim < 0) {
                victim = policy->victim(may_go);
            }
            if (victim < 0) {
                // Less room than one layer wants at once: the last in the queue goes back.
                victim = policy->victim([&](int other) { return !in_use[other] && other != unit; });
                result.forced++;
            }
            if (victim < 0) {
                throw std::logic_error("nothing can go");
            }
            drop(victim);
        }
        policy->loaded(unit);
        resident[unit] = 1;
        count++;
        result.max_resident = std::max(result.max_resident, count);
        // Requests overlap their latencies, not their transfers.
        disk_free = std::max(disk_free, asked + options.disk_latency_s) + options.unit_bytes / rate;
        ready[unit] = disk_free;
        part->read_units += counted;
    }

    void drop(int unit) {
        policy->evicted(unit);
        resident[unit] = 0;
        ahead[unit] = 0;
        count--;
        result.evictions++;
    }

    void record(size_t index) {
        const auto & now_record = trace.records[index];
        const auto & units = wanted[index];
        const expert_routing routing = {now_record.layer,    trace.n_expert, now_record.n_used,
                                        now_record.n_tokens, nullptr,        now_record.ids.data(),
                                        now_record.n_used};
        if (now_record.layer <= last_layer) {
            tokens_done += last_tokens;
        }
        last_layer = now_record.layer;
        last_tokens = now_record.n_tokens;
        counted = tokens_done >= (uint64_t) options.skip_tokens;
        const bool streams = now_record.n_tokens >= options.stream_tokens;
        own_layer = streams && options.policy == "ours";
        part = streams ? &result.prefill : &result.decode;

        const double began = now;
        now += options.layer_s + (now_record.n_tokens - 1) * options.layer_token_s;
        routing_spoke = now;
        policy->used(routing, index);
        settle(routing);
        std::vector<int> rows(trace.n_expert);
        for (const int32_t expert : now_record.ids) {
            rows[expert]++;
        }
        for (const int unit : units) {
            waiting[unit] = 1;
        }
        // When the first missing unit could be asked for.
        double asked = now;
        if (streams && whole_layers) {
            asked = starts.empty() ? began : starts.front();
            read_whole_layer(now_record.layer, asked);
        } else if (streams && !faults) {
            asked = starts.empty() ? began : starts.back();
        }
        starts.push_back(began);
        if ((int) starts.size() > options.pr2101_ahead) {
            starts.pop_front();
        }
        double stalled = 0;
        for (const int unit : units) {
            waiting[unit] = 0;
            in_use[unit] = 1;
            const bool hit = resident[unit];
            part->accesses += counted;
            part->hits += counted && hit && !just_read[unit];
            if (!hit) {
                if (streams && !whole_layers && !faults &&
                    (int) ring.size() >= options.ring_units) {
                    asked = std::max(asked, ring.front());
                    ring.pop_front();
                }
                load(unit, faults ? std::max(asked, now) : asked,
                     faults ? options.fault_bytes_s : options.disk_bytes_s);
            } else if (ahead[unit]) {
                result.foreseen_used += counted;
            }
            ahead[unit] = 0;
            policy->touched(unit, position++);
            stalled += std::max(0.0, ready[unit] - now);
            now = std::max(now, ready[unit]) + options.expert_s +
                  (rows[unit % trace.n_expert] - 1) * options.expert_token_s;
            if (!hit && streams) {
                ring.push_back(now);
                if ((int) ring.size() > options.ring_units) {
                    ring.pop_front();
                }
            }
            in_use[unit] = 0;
        }
        if (streams && whole_layers) {
            for (const int unit : streamed) {
                just_read[unit] = 0;
                if (resident[unit]) {
                    policy->cold(unit);
                }
            }
            streamed.clear();
        }
        if (counted) {
            part->seconds += now - began;
            part->stall_seconds += stalled;
            // Each token once: at its last layer.
            if (index + 1 == trace.records.size() ||
                trace.records[index + 1].layer <= now_record.layer) {
                part->tokens += (uint64_t) now_record.n_tokens;
            }
        }
        for (const int unit : foreseen) {
            ahead[unit] = 0; // came true or not
        }
        foreseen.clear();
        foresee(routing, index);
    }

    // All of a layer that is not there, wanted or not.
    void read_whole_layer(int layer, double asked) {
        for (int expert = 0; expert < trace.n_expert; expert++) {
            const int unit = layer * trace.n_expert + expert;
            if (!resident[unit]) {
                load(unit, asked, options.disk_bytes_s);
                streamed.push_back(unit);
                just_read[unit] = 1;
            }
        }
    }

    // What was foreseen for this layer, against what its router chose.
    void settle(const expert_routing & routing) {
        if (!foresees) {
            return;
        }
        if (guess.layer == routing.layer && routing.n_tokens == 1) {
            const auto right = [&](const std::vector<expert_guess> & guesses) {
                uint64_t n = 0;
                for (const auto & one : guesses) {
                    n += std::count(routing.ids, routing.ids + routing.n_used, one.expert);
                }
                return n;
            };
            score.settle(routing.layer, guess.absent, routing.ids, routing.n_used);
            if (counted) {
                result.guessed += guess.all.size();
                result.guessed_right += right(guess.all);
                result.absent_guessed += guess.absent.size();
                result.absent_right += right(guess.absent);
            }
        }
        guess.layer = -1;
        together.observe(routing);
    }

    void foresee(const expert_routing & routing, size_t index) {
        if (!foresees || routing.n_tokens != 1) {
            return;
        }
        guess.layer = -1;
        guess.absent.clear();
        if (options.foresee_recall > 0) {
            told(routing, index);
        } else {
            guess.layer = together.next(routing.layer);
            guess.all =
                together.predict(routing.layer, routing.ids, routing.n_used, routing.n_used);
        }
        if (guess.layer < 0) {
            return;
        }
        for (const auto & one : guess.all) {
            if (!resident[guess.layer * trace.n_expert + one.expert]) {
                guess.absent.push_back(one);
            }
        }
        score.rate(guess.layer, guess.absent);
        int asked_for = 0;
        for (const auto & one : guess.absent) {
            if (asked_for >= options.foresee || one.probability < options.foresee_share) {
                continue;
            }
            const int unit = guess.layer * trace.n_expert + one.expert;
            if (resident[unit]) {
                continue; // guessed twice
            }
            const double begins = std::max(disk_free, routing_spoke + options.disk_latency_s);
            if (begins >= now + options.layer_s) {
                break; // the next router will have spoken; nothing makes room for this
            }
            load(unit, routing_spoke, options.disk_bytes_s);
            ahead[unit] = 1;
            foreseen.push_back(unit);
            result.foreseen += counted;
            asked_for++;
        }
    }

    // The predictor of known recall.
    void told(const expert_routing & routing, size_t index) {
        guess.all.clear();
        if (index + 1 == trace.records.size() || trace.records[index + 1].layer <= routing.layer) {
            return;
        }
        const auto & next = trace.records[index + 1];
        guess.layer = next.layer;
        for (const int32_t expert : next.ids) {
            const bool known = chance() < options.foresee_recall;
            guess.all.push_back({known ? expert : (int) (chance() * trace.n_expert), 0});
        }
    }

    double chance() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (double) (state >> 11) * 0x1p-53;
    }

    const expert_trace & trace;
    const replay_options & options;
    const std::vector<std::vector<int>> wanted;
    std::unique_ptr<replay_policy> policy;
    replay_result result;
    replay_part * part = nullptr;
    bool counted = false;
    bool own_layer = false;

    std::vector<uint8_t> resident;
    std::vector<double> ready; // when what is resident was or will be read
    std::vector<uint8_t> waiting, in_use, ahead, just_read;
    int count = 0;
    size_t position = 0;
    uint64_t tokens_done = 0;
    int last_layer = trace.n_layer, last_tokens = 0;

    double now = 0, disk_free = 0, routing_spoke = 0;
    std::deque<double> starts; // of the last records
    std::deque<double> ring;   // when the slots of the last streamed units came free
    std::vector<int> streamed, foreseen;

    expert_coactivation together;
    expert_prediction_score score;
    guess_list guess;
    uint64_t state = 1;
    const bool faults, whole_layers, foresees;
};

} // namespace

replay_result replay(const expert_trace & trace, const replay_options & options) {
    if (options.budget_units < 1) {
        throw std::invalid_argument("the budget must be at least one unit");
    }
    if (!(options.unit_bytes > 0 && options.disk_bytes_s > 0 && options.fault_bytes_s > 0)) {
        throw std::invalid_argument("sizes and rates must be positive");
    }
    return replayer(trace, options).run();
}

} // namespace llama_ai
