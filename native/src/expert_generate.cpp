#include "expert_generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

namespace llama_ai {

namespace {

const int dims = 16;

// The same numbers everywhere; the standard's distributions are not. SplitMix64.
class random_numbers {
public:
    explicit random_numbers(uint64_t seed) : state(seed) {}

    uint64_t next() {
        uint64_t z = (state += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    int below(int n) {
        return (int) (next() % (uint64_t) n);
    }
    double uniform() { // (0, 1)
        return ((double) (next() >> 11) + 0.5) * 0x1p-53;
    }
    double normal() {
        return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    }

private:
    uint64_t state;
};

class generator {
public:
    explicit generator(const expert_workload & workload)
        : work(workload), random(workload.seed), preference(work.n_expert),
          ranks((size_t) work.n_layer * work.n_expert), slow_weights(ranks.size() * dims),
          fast_weights(ranks.size() * dims), slow((size_t) work.streams * dims), fast(dims) {
        for (int rank = 0; rank < work.n_expert; rank++) {
            preference[rank] = -work.zipf * std::log(rank + 1.0);
        }
        for (int layer = 0; layer < work.n_layer; layer++) {
            shuffle(layer);
        }
        for (auto * weights : {&slow_weights, &fast_weights}) {
            for (auto & weight : *weights) {
                weight = (float) (random.normal() / std::sqrt(dims));
            }
        }
        for (auto & value : slow) {
            value = random.normal();
        }
    }

    // The experts of the next token of this stream, all layers: [n_layer][n_used].
    std::vector<int32_t> token(int stream) {
        const double keep = std::exp2(-1 / work.topic_half_life);
        double * topic = &slow[(size_t) stream * dims];
        for (int i = 0; i < dims; i++) {
            topic[i] = keep * topic[i] + std::sqrt(1 - keep * keep) * random.normal();
            fast[i] = random.normal();
        }
        if (work.shift_every > 0 && made > 0 && made % work.shift_every == 0) {
            for (int layer = 0; layer < work.n_layer; layer++) {
                shuffle(layer);
            }
        }
        std::vector<int32_t> chosen;
        std::vector<std::pair<double, int32_t>> values(work.n_expert);
        for (int layer = 0; layer < work.n_layer; layer++) {
            int32_t * rank = &ranks[(size_t) layer * work.n_expert];
            if (work.swap_every > 0 && made % work.swap_every == 0) {
                std::swap(rank[random.below(work.n_expert)], rank[random.below(work.n_expert)]);
            }
            for (int expert = 0; expert < work.n_expert; expert++) {
                const size_t at = ((size_t) layer * work.n_expert + expert) * dims;
                double value = preference[rank[expert]] - std::log(-std::log(random.uniform()));
                for (int i = 0; work.topic > 0 && i < dims; i++) {
                    value += work.topic * slow_weights[at + i] * topic[i];
                }
                for (int i = 0; work.link > 0 && i < dims; i++) {
                    value += work.link * fast_weights[at + i] * fast[i];
                }
                values[expert] = {-value, expert};
            }
            std::partial_sort(values.begin(), values.begin() + work.n_used, values.end());
            for (int k = 0; k < work.n_used; k++) {
                chosen.push_back(values[k].second);
            }
        }
        made++;
        return chosen;
    }

private:
    void shuffle(int layer) {
        int32_t * rank = &ranks[(size_t) layer * work.n_expert];
        std::iota(rank, rank + work.n_expert, 0);
        for (int i = work.n_expert - 1; i > 0; i--) {
            std::swap(rank[i], rank[random.below(i + 1)]);
        }
    }

    const expert_workload work;
    random_numbers random;
    std::vector<double> preference;
    std::vector<int32_t> ranks;
    std::vector<float> slow_weights, fast_weights;
    std::vector<double> slow, fast;
    int64_t made = 0;
};

} // namespace

static double number(const std::string & text, double lowest, double highest) {
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception &) {
        used = 0;
    }
    if (text.empty() || used != text.size() || !(value >= lowest && value <= highest)) {
        throw std::invalid_argument("'" + text + "' is not a number from " +
                                    std::to_string((int) lowest) + " to " +
                                    std::to_string((int) highest));
    }
    return value;
}

void parse_workload(const std::string & text, expert_workload & workload) {
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const std::string part = text.substr(begin, end - begin);
        begin = end + 1;
        const size_t colon = part.find(':');
        const std::string name = part.substr(0, colon);
        std::vector<std::string> values;
        for (size_t at = colon; at != std::string::npos && values.size() < 4;) {
            const size_t slash = part.find('/', at + 1);
            values.push_back(
                part.substr(at + 1, slash == std::string::npos ? slash : slash - at - 1));
            at = slash;
        }
        const auto take = [&](size_t most) {
            if (values.empty() || values.size() > most) {
                throw std::invalid_argument("workload '" + part + "': wrong number of values");
            }
        };
        if (name == "zipf") {
            take(1);
            workload.zipf = number(values[0], 0, 10);
        } else if (name == "topic") {
            take(2);
            workload.topic = number(values[0], 0, 100);
            if (values.size() > 1) {
                workload.topic_half_life = number(values[1], 1, 1e6);
            }
        } else if (name == "link") {
            take(1);
            workload.link = number(values[0], 0, 100);
        } else if (name == "swap") {
            take(1);
            workload.swap_every = (int) number(values[0], 1, 1e6);
        } else if (name == "shift") {
            take(1);
            workload.shift_every = (int) number(values[0], 1, 1e6);
        } else if (name == "streams") {
            take(1);
            workload.streams = (int) number(values[0], 1, 64);
        } else if (name == "prompt") {
            take(3);
            workload.prompt = (int) number(values[0], 1, 1e6);
            if (values.size() > 1) {
                workload.reply = (int) number(values[1], 0, 1e6);
            }
            if (values.size() > 2) {
                workload.ubatch = (int) number(values[2], 1, 1e5);
            }
        } else {
            throw std::invalid_argument("workload '" + part +
                                        "': expected zipf, topic, link, swap, shift, streams or "
                                        "prompt");
        }
    }
}

expert_trace generate_trace(const expert_workload & workload) {
    expert_trace trace;
    trace.n_layer = workload.n_layer;
    trace.n_expert = workload.n_expert;
    trace.n_used = workload.n_used;
    trace.model = "synthetic";
    generator source(workload);
    const int period = workload.prompt + workload.reply;
    for (int made = 0, stream = 0; made < workload.tokens;) {
        int n = workload.streams;
        if (workload.prompt > 0) {
            const int at = made % period;
            n = at < workload.prompt ? std::min(workload.ubatch, workload.prompt - at) : 1;
        }
        n = std::min(n, workload.tokens - made);
        std::vector<std::vector<int32_t>> chosen;
        for (int token = 0; token < n; token++) {
            chosen.push_back(source.token(stream));
            stream = workload.prompt > 0 ? 0 : (stream + 1) % workload.streams;
        }
        for (int layer = 0; layer < workload.n_layer; layer++) {
            expert_trace_record record;
            record.layer = layer;
            record.n_used = workload.n_used;
            record.n_tokens = n;
            for (const auto & token : chosen) {
                const auto from = token.begin() + (ptrdiff_t) layer * workload.n_used;
                record.ids.insert(record.ids.end(), from, from + workload.n_used);
            }
            trace.records.push_back(std::move(record));
        }
        made += n;
    }
    return trace;
}

} // namespace llama_ai
