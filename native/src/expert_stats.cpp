#include "expert_stats.h"

#include "kv_posix.h"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <system_error>

using json_object = nlohmann::ordered_json;

namespace llama_ai {

static const char * const schema = "llama-ai.expert-stats/1";
// Of a row of co-activation counts the file keeps this many, the greatest.
static const size_t kept_pairs = 32;
static const off_t max_file_bytes = 256 << 20;

expert_stats::expert_stats(const expert_shape & shape, const expert_stats_options & options)
    : size(shape), options(options), layers(shape.n_layer),
      coactivation(shape.n_layer, shape.n_expert, options.max_coactivation_bytes) {
    for (auto & layer : layers) {
        layer.total.resize(shape.n_expert);
        layer.recent.resize(shape.n_expert);
    }
}

void expert_stats::count(const expert_routing & routing) {
    if (!enabled() || routing.is_warmup() || routing.n_tokens <= 0 || routing.layer < 0 ||
        routing.layer >= size.n_layer || routing.n_expert > size.n_expert) {
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    auto & layer = layers[routing.layer];
    for (int token = 0; token < routing.n_tokens; token++) {
        for (int k = 0; k < routing.n_used; k++) {
            const int32_t expert = routing.expert(token, k);
            layer.total[expert]++;
            layer.recent[expert] += layer.weight;
        }
    }
    layer.tokens += routing.n_tokens;
    layer.recent_tokens += routing.n_tokens * layer.weight;
    // A ubatch is short beside the half-life: its tokens count alike.
    layer.weight *= std::exp2(routing.n_tokens / options.half_life_tokens);
    if (layer.weight > 0x1p200) {
        for (auto & recent : layer.recent) {
            recent /= layer.weight;
        }
        layer.recent_tokens /= layer.weight;
        layer.weight = 1;
    }
    coactivation.observe(routing);
    sample_every = std::max(sample_every, routing.sample_every);
    changes++;
}

void expert_stats::reset() {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto & layer : layers) {
        std::fill(layer.total.begin(), layer.total.end(), 0);
        std::fill(layer.recent.begin(), layer.recent.end(), 0);
        layer.recent_tokens = 0;
        layer.tokens = 0;
        layer.weight = 1;
    }
    coactivation.reset();
    changes++;
}

std::vector<double> expert_stats::rates() const {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<double> result;
    result.reserve((size_t) size.n_layer * size.n_expert);
    for (const auto & layer : layers) {
        for (const double recent : layer.recent) {
            result.push_back(layer.recent_tokens > 0 ? recent / layer.recent_tokens : 0);
        }
    }
    return result;
}

std::vector<expert_guess> expert_stats::predict(int layer, const int32_t * chosen, int n_chosen,
                                                int k) const {
    std::lock_guard<std::mutex> lock(mutex);
    return coactivation.predict(layer, chosen, n_chosen, k);
}

int expert_stats::next(int layer) const {
    std::lock_guard<std::mutex> lock(mutex);
    return coactivation.next(layer);
}

template <typename Number>
static double entropy_bits(const std::vector<Number> & uses) {
    const double all = (double) std::accumulate(uses.begin(), uses.end(), Number(0));
    double bits = 0;
    for (const auto use : uses) {
        if (use > 0) {
            bits -= use / all * std::log2(use / all);
        }
    }
    return bits + 0.0; // no negative zero
}

std::string expert_stats::json() const {
    // A copy, so that the computation waits for microseconds only.
    std::vector<layer_counts> copy;
    int every = 1;
    {
        std::lock_guard<std::mutex> lock(mutex);
        copy = layers;
        every = sample_every;
    }
    uint64_t tokens = 0;
    auto list = json_object::array();
    for (int i = 0; i < size.n_layer; i++) {
        const auto & layer = copy[i];
        if (layer.tokens == 0) {
            continue;
        }
        tokens = std::max(tokens, layer.tokens);
        std::vector<int> order(size.n_expert);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return layer.total[a] > layer.total[b]; });
        auto activations = json_object::array();
        std::vector<uint64_t> sums = {0};
        for (const int expert : order) {
            sums.push_back(sums.back() + layer.total[expert]);
            if (layer.total[expert] > 0) {
                activations.push_back({{"expert", expert},
                                       {"count", layer.total[expert]},
                                       {"frequency", (double) layer.total[expert] / layer.tokens}});
            }
        }
        auto shares = json_object::array();
        for (const int part : {16, 8, 4, 2}) {
            const int experts = std::max(1, size.n_expert / part);
            shares.push_back(
                {{"experts", experts}, {"share", (double) sums[experts] / (double) sums.back()}});
        }
        list.push_back({{"layer", i},
                        {"tokens", layer.tokens},
                        {"entropy_bits", entropy_bits(layer.total)},
                        {"recent_entropy_bits", entropy_bits(layer.recent)},
                        {"top_shares", shares},
                        {"activations", activations}});
    }
    return json_object({{"n_expert", size.n_expert},
                        {"n_expert_used", size.n_used},
                        {"total_tokens", tokens},
                        {"tracking_enabled", enabled()},
                        {"sample_every", every},
                        {"coactivation_bytes", coactivation.bytes()},
                        {"layers", list}})
        .dump();
}

bool expert_stats::save(const std::string & path, const std::string & model) {
    json_object document = {{"schema", schema},
                            {"model", model},
                            {"n_layer", size.n_layer},
                            {"n_expert", size.n_expert},
                            {"n_expert_used", size.n_used}};
    uint64_t seen_changes = 0;
    {
        std::unique_lock<std::mutex> lock(mutex);
        if (changes == saved_changes) {
            return false;
        }
        seen_changes = changes;
        const auto copy = layers;
        // The pairs are megabytes: layer by layer, so that the computation never waits long.
        lock.unlock();
        auto list = json_object::array();
        for (int i = 0; i < size.n_layer; i++) {
            const auto & layer = copy[i];
            if (layer.tokens == 0) {
                continue;
            }
            auto recent = json_object::array();
            for (const double use : layer.recent) {
                recent.push_back(use / layer.weight);
            }
            auto pairs = json_object::array();
            std::vector<uint16_t> rows, seen;
            lock.lock();
            const int follower = coactivation.next(i);
            if (follower >= 0) {
                for (int a = 0; a < size.n_expert; a++) {
                    const uint16_t * row = coactivation.row(i, a);
                    rows.insert(rows.end(), row, row + size.n_expert);
                    seen.push_back(coactivation.seen(i, a));
                }
            }
            lock.unlock();
            std::vector<int> order(size.n_expert);
            for (int a = 0; a < (int) seen.size(); a++) {
                const uint16_t * row = rows.data() + (size_t) a * size.n_expert;
                std::iota(order.begin(), order.end(), 0);
                const size_t kept = std::min(kept_pairs, order.size());
                std::partial_sort(
                    order.begin(), order.begin() + kept, order.end(),
                    [&](int x, int y) { return row[x] != row[y] ? row[x] > row[y] : x < y; });
                auto with = json_object::array();
                for (size_t k = 0; k < kept && row[order[k]] > 0; k++) {
                    with.push_back(order[k]);
                    with.push_back(row[order[k]]);
                }
                if (seen[a] > 0) {
                    pairs.push_back({a, seen[a], with});
                }
            }
            list.push_back({{"layer", i},
                            {"tokens", layer.tokens},
                            {"recent_tokens", layer.recent_tokens / layer.weight},
                            {"total", layer.total},
                            {"recent", recent},
                            {"next", follower >= 0 ? json_object(follower) : json_object()},
                            {"pairs", pairs}});
        }
        document["layers"] = list;
    }
    const std::string text = document.dump(-1, ' ', false, json_object::error_handler_t::replace);
    const std::string temporary = path + ".new";
    {
        file_handle file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        if (!file) {
            throw std::system_error(errno, std::generic_category(), temporary);
        }
        try {
            write_all(file.get(), text.data(), text.size(), 0);
            if (fsync(file.get()) != 0) {
                throw std::system_error(errno, std::generic_category(), temporary);
            }
        } catch (...) {
            unlink(temporary.c_str());
            throw;
        }
    }
    if (rename(temporary.c_str(), path.c_str()) != 0) {
        const int error = errno;
        unlink(temporary.c_str());
        throw std::system_error(error, std::generic_category(), path);
    }
    const size_t slash = path.rfind('/');
    file_handle dir(open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(),
                         O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir) {
        fsync(dir.get());
    }
    std::lock_guard<std::mutex> lock(mutex);
    saved_changes = seen_changes;
    return true;
}

namespace {

struct loaded_layer {
    int layer = 0, next = -1;
    uint64_t tokens = 0;
    double recent_tokens = 0;
    std::vector<uint64_t> total;
    std::vector<double> recent;
    struct row {
        int expert = 0;
        uint16_t seen = 0;
        std::vector<uint16_t> counts;
    };
    std::vector<row> rows;
};

} // namespace

static void require(bool so, const char * what) {
    if (!so) {
        throw std::runtime_error(what);
    }
}

// A whole number of [0, limit]; nlohmann would convert anything.
static uint64_t whole(const nlohmann::json & value, uint64_t limit, const char * what) {
    require(value.is_number_unsigned() && value.get<uint64_t>() <= limit, what);
    return value.get<uint64_t>();
}

static double amount(const nlohmann::json & value, const char * what) {
    require(value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1e15, what);
    return value.get<double>();
}

static loaded_layer parse_layer(const nlohmann::json & from, const expert_shape & shape) {
    const uint64_t many = 1ull << 53;
    const uint64_t last = (uint64_t) shape.n_expert - 1;
    loaded_layer to;
    to.layer = (int) whole(from.at("layer"), shape.n_layer - 1, "a layer out of range");
    to.tokens = whole(from.at("tokens"), many, "tokens");
    to.recent_tokens = amount(from.at("recent_tokens"), "recent_tokens");
    const auto & total = from.at("total");
    const auto & recent = from.at("recent");
    require(total.is_array() && total.size() == (size_t) shape.n_expert && recent.is_array() &&
                recent.size() == total.size(),
            "counts that are not one for each expert");
    for (size_t i = 0; i < total.size(); i++) {
        to.total.push_back(whole(total[i], many, "a count"));
        to.recent.push_back(amount(recent[i], "a decayed count"));
        require(to.recent.back() <= to.recent_tokens * 1.001 + 1, "more uses than tokens");
    }
    if (from.at("next").is_null()) {
        return to;
    }
    to.next = (int) whole(from.at("next"), shape.n_layer - 1, "a next layer out of range");
    require(to.next > to.layer, "a next layer that is not later");
    require(from.at("pairs").is_array(), "pairs");
    for (const auto & entry : from.at("pairs")) {
        require(entry.is_array() && entry.size() == 3 && entry[2].is_array() &&
                    entry[2].size() % 2 == 0,
                "a row of pairs");
        loaded_layer::row row;
        row.expert = (int) whole(entry[0], last, "an expert out of range");
        row.seen = (uint16_t) whole(entry[1], UINT16_MAX, "a count of a row");
        row.counts.resize(shape.n_expert);
        for (size_t i = 0; i < entry[2].size(); i += 2) {
            row.counts[whole(entry[2][i], last, "an expert out of range")] =
                (uint16_t) whole(entry[2][i + 1], row.seen, "a pair seen more often than its row");
        }
        to.rows.push_back(std::move(row));
    }
    return to;
}

expert_load expert_stats::load(const std::string & path, const std::string & model,
                               std::string & why) {
    std::vector<loaded_layer> loaded;
    try {
        std::string text;
        {
            file_handle file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
            struct stat status;
            if (!file || fstat(file.get(), &status) != 0) {
                why = std::strerror(errno);
                return expert_load::missing;
            }
            require(S_ISREG(status.st_mode), "not a file");
            require(status.st_size <= max_file_bytes, "too large");
            text.resize((size_t) status.st_size);
            require(read_all(file.get(), text.data(), text.size(), 0), "a read error");
        }
        const auto document = nlohmann::json::parse(text);
        require(document.at("schema") == schema, "another version");
        if (document.at("model") != model || document.at("n_layer") != size.n_layer ||
            document.at("n_expert") != size.n_expert ||
            document.at("n_expert_used") != size.n_used) {
            why = "it belongs to another model";
            return expert_load::other_model;
        }
        require(document.at("layers").is_array(), "layers");
        for (const auto & layer : document.at("layers")) {
            loaded.push_back(parse_layer(layer, size));
        }
    } catch (const std::exception & error) {
        why = error.what();
        if (rename(path.c_str(), (path + ".damaged").c_str()) != 0) {
            why += std::string("; it could not be set aside: ") + std::strerror(errno);
        }
        return expert_load::damaged;
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto & from : loaded) {
        auto & to = layers[from.layer];
        to.tokens += from.tokens;
        to.recent_tokens += from.recent_tokens * to.weight;
        for (int expert = 0; expert < size.n_expert; expert++) {
            to.total[expert] += from.total[expert];
            to.recent[expert] += from.recent[expert] * to.weight;
        }
        for (const auto & row : from.rows) {
            coactivation.set(from.layer, from.next, row.expert, row.seen, row.counts);
        }
    }
    return expert_load::loaded;
}

} // namespace llama_ai
