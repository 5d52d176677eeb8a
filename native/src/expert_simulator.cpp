// expert_simulator: what a policy would have done with recorded routing, or synthetic routing.
//
//   expert_simulator TRACE --budget-units N [--policy NAME] [options]   one JSON object
//   expert_simulator --generate WORKLOAD --shape LxExK --tokens N [--seed N] --out TRACE
//   expert_simulator --import FILE.json --out TRACE                     another program's records
//   expert_simulator TRACE --info                                       what is in it
//
// --generate and --import without --out stand for a trace. See docs/expert-traces.md.

#include "expert_generate.h"
#include "expert_replay.h"
#include "expert_trace.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

using json_object = nlohmann::ordered_json;
using namespace llama_ai;

namespace {

const char * const usage = R"(usage:
  expert_simulator TRACE --budget-units N [--policy P] [OPTIONS]
  expert_simulator TRACE --info
  expert_simulator --generate WORKLOAD [--shape LxExK] [--tokens N] [--seed N] --out TRACE
  expert_simulator --import FILE.json --out TRACE
In place of TRACE: --generate WORKLOAD [--shape LxExK] [--tokens N] [--seed N], or --import FILE.json

  --policy P              ours (default), lru, lfu, static, clock, belady, pr2101, mmap; several: P,P
  --budget-units N        experts (of one layer) that fit in memory; several: N,N
  --half-lives H,H        tokens, for ours
  --skip-tokens N         leave the first N tokens out of the figures
  --unit-mib, --disk-mb-s, --fault-mb-s, --disk-latency-us, --layer-us, --layer-token-us,
  --expert-us, --expert-token-us, --ring-units, --stream-tokens, --pr2101-ahead: the time model
  --foresee N, --foresee-share X, --foresee-recall R   read up to N units ahead
WORKLOAD: zipf:S,topic:T/HALF_LIFE,link:L,swap:N,shift:N,streams:N,prompt:N/REPLY/UBATCH
)";

class options {
public:
    options(int argc, char ** argv) {
        for (int i = 1; i < argc; i++) {
            const std::string word = argv[i];
            if (word == "--info") {
                values[word] = "";
            } else if (word.rfind("--", 0) == 0) {
                if (i + 1 == argc) {
                    throw std::invalid_argument(word + " needs a value");
                }
                values[word] = argv[++i];
            } else if (trace.empty()) {
                trace = word;
            } else {
                throw std::invalid_argument("one trace at a time: " + word);
            }
        }
    }

    bool has(const std::string & name) {
        known[name] = true;
        return values.count(name) > 0;
    }
    std::string text(const std::string & name, const std::string & otherwise) {
        return has(name) ? values[name] : otherwise;
    }
    std::vector<std::string> list(const std::string & name, const std::string & otherwise) {
        std::vector<std::string> result;
        const std::string all = text(name, otherwise);
        for (size_t begin = 0; begin <= all.size() && !all.empty();) {
            const size_t end = std::min(all.find(',', begin), all.size());
            result.push_back(all.substr(begin, end - begin));
            begin = end + 1;
        }
        return result;
    }
    static double parse(const std::string & name, const std::string & value) {
        size_t used = 0;
        double number = 0;
        try {
            number = std::stod(value, &used);
        } catch (const std::exception &) {
            used = 0;
        }
        if (value.empty() || used != value.size() || !(number >= 0 && number <= 1e12)) {
            throw std::invalid_argument(name + ": '" + value + "' is not a number");
        }
        return number;
    }
    void number(const std::string & name, double & to, double scale = 1) {
        if (has(name)) {
            to = parse(name, values[name]) * scale;
        }
    }
    void number(const std::string & name, int & to) {
        if (has(name)) {
            to = whole(name, values[name]);
        }
    }
    static int whole(const std::string & name, const std::string & value) {
        const double number = parse(name, value);
        if (number != (double) (int) number) {
            throw std::invalid_argument(name + ": '" + value + "' is not a whole number");
        }
        return (int) number;
    }
    void refuse_others() const {
        for (const auto & [name, value] : values) {
            if (!known.count(name)) {
                throw std::invalid_argument("unknown option " + name);
            }
        }
    }

    std::string trace;

private:
    std::map<std::string, std::string> values;
    std::map<std::string, bool> known;
};

} // namespace

static expert_trace make_trace(options & words) {
    expert_workload workload;
    parse_workload(words.text("--generate", ""), workload);
    const std::string shape = words.text("--shape", "24x64x4");
    char rest = 0;
    if (std::sscanf(shape.c_str(), "%dx%dx%d%c", &workload.n_layer, &workload.n_expert,
                    &workload.n_used, &rest) != 3 ||
        workload.n_layer < 1 || workload.n_layer > 512 || workload.n_used < 1 ||
        workload.n_expert < workload.n_used || workload.n_expert > 4096) {
        throw std::invalid_argument("--shape: expected LAYERSxEXPERTSxUSED, not '" + shape + "'");
    }
    words.number("--tokens", workload.tokens);
    int seed = 1;
    words.number("--seed", seed);
    workload.seed = (uint64_t) seed;
    return generate_trace(workload);
}

static int whole(const nlohmann::json & value, int lowest, int highest) {
    if (!value.is_number_integer() || value.get<int64_t>() < lowest ||
        value.get<int64_t>() > highest) {
        throw std::runtime_error(value.dump() + " is not a whole number from " +
                                 std::to_string(lowest) + " to " + std::to_string(highest));
    }
    return value.get<int>();
}

// {"n_layer", "n_expert", "n_used", "model", "records": [{"layer", "ids": [[of a token], ...]}]}
static expert_trace import_trace(const std::string & path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot read " + path);
    }
    try {
        const auto document = nlohmann::json::parse(file);
        expert_trace trace;
        trace.n_layer = whole(document.at("n_layer"), 1, 4096);
        trace.n_expert = whole(document.at("n_expert"), 1, 65536);
        trace.n_used = whole(document.at("n_used"), 1, trace.n_expert);
        trace.model = document.value("model", "");
        for (const auto & from : document.at("records")) {
            expert_trace_record record;
            record.layer = whole(from.at("layer"), 0, trace.n_layer - 1);
            record.n_tokens = (int) from.at("ids").size();
            record.n_used = record.n_tokens ? (int) from["ids"][0].size() : 0;
            for (const auto & token : from["ids"]) {
                if ((int) token.size() != record.n_used || record.n_used < 1) {
                    throw std::runtime_error(
                        "tokens of a record with different numbers of experts");
                }
                for (const auto & id : token) {
                    record.ids.push_back(whole(id, 0, trace.n_expert - 1));
                }
            }
            if (record.n_tokens > 0) {
                trace.records.push_back(std::move(record));
            }
        }
        return trace;
    } catch (const std::exception & error) {
        throw std::runtime_error(path + ": " + error.what());
    }
}

static void write_trace(const expert_trace & trace, const std::string & path) {
    // The buffer holds the largest record, and the writer is waited for: nothing is dropped.
    size_t largest = 0;
    for (const auto & record : trace.records) {
        largest = std::max(largest, record.ids.size());
    }
    const size_t buffer = (64u << 20) + largest * 2;
    uint64_t dropped = 0;
    std::string error;
    {
        expert_trace_writer writer(path, trace.n_layer, trace.n_expert, trace.n_used, trace.model,
                                   1ull << 40, buffer);
        for (const auto & record : trace.records) {
            expert_routing routing;
            routing.layer = record.layer;
            routing.n_expert = trace.n_expert;
            routing.n_used = record.n_used;
            routing.n_tokens = record.n_tokens;
            routing.ids = record.ids.data();
            routing.ids_stride = record.n_used;
            writer.add_waiting(routing);
        }
        dropped = writer.dropped();
        error = writer.error();
    }
    if (dropped > 0 || !error.empty()) {
        throw std::runtime_error(path + ": " + (error.empty() ? "the disk is too slow" : error));
    }
}

static json_object info(const expert_trace & trace) {
    uint64_t tokens = 0;
    std::vector<bool> seen(trace.n_layer);
    for (size_t i = 0; i < trace.records.size(); i++) {
        const auto & record = trace.records[i];
        seen[record.layer] = true;
        if (i + 1 == trace.records.size() || trace.records[i + 1].layer <= record.layer) {
            tokens += (uint64_t) record.n_tokens;
        }
    }
    int layers = 0;
    for (const bool layer : seen) {
        layers += layer;
    }
    return {{"model", trace.model},       {"n_layer", trace.n_layer},
            {"n_expert", trace.n_expert}, {"n_expert_used", trace.n_used},
            {"expert_layers", layers},    {"units", layers * trace.n_expert},
            {"tokens", tokens},           {"records", trace.records.size()},
            {"dropped", trace.dropped},   {"complete", trace.complete}};
}

static json_object part(const replay_part & one) {
    json_object result = {{"tokens", one.tokens},   {"accesses", one.accesses},
                          {"hits", one.hits},       {"misses", one.accesses - one.hits},
                          {"hit_rate", nullptr},    {"read_units", one.read_units},
                          {"seconds", one.seconds}, {"stall_seconds", one.stall_seconds},
                          {"tokens_per_s", nullptr}};
    if (one.accesses > 0) {
        result["hit_rate"] = (double) one.hits / (double) one.accesses;
    }
    if (one.seconds > 0) {
        result["tokens_per_s"] = (double) one.tokens / one.seconds;
    }
    return result;
}

static int simulate(int argc, char ** argv) {
    options words(argc, argv);
    if (!words.trace.empty() + words.has("--generate") + words.has("--import") != 1) {
        throw std::invalid_argument("one of a trace, --generate and --import");
    }
    const expert_trace trace = words.has("--generate") ? make_trace(words)
                               : words.has("--import") ? import_trace(words.text("--import", ""))
                                                       : read_expert_trace(words.trace);
    if (words.has("--out")) {
        const std::string path = words.text("--out", "");
        words.refuse_others();
        write_trace(trace, path);
        return 0;
    }
    json_object output = info(trace);
    const bool only_info = words.has("--info");
    replay_options settings;
    for (const auto & half_life : words.list("--half-lives", "")) {
        settings.half_lives_tokens.push_back(options::parse("--half-lives", half_life));
        if (!(settings.half_lives_tokens.back() > 0)) {
            throw std::invalid_argument("--half-lives: must be positive");
        }
    }
    words.number("--skip-tokens", settings.skip_tokens);
    words.number("--unit-mib", settings.unit_bytes, 1 << 20);
    words.number("--disk-mb-s", settings.disk_bytes_s, 1e6);
    words.number("--fault-mb-s", settings.fault_bytes_s, 1e6);
    words.number("--disk-latency-us", settings.disk_latency_s, 1e-6);
    words.number("--layer-us", settings.layer_s, 1e-6);
    words.number("--layer-token-us", settings.layer_token_s, 1e-6);
    words.number("--expert-us", settings.expert_s, 1e-6);
    words.number("--expert-token-us", settings.expert_token_s, 1e-6);
    words.number("--ring-units", settings.ring_units);
    words.number("--stream-tokens", settings.stream_tokens);
    words.number("--pr2101-ahead", settings.pr2101_ahead);
    words.number("--foresee", settings.foresee);
    words.number("--foresee-share", settings.foresee_share);
    words.number("--foresee-recall", settings.foresee_recall);
    const auto policies = words.list("--policy", "ours");
    const auto budgets = words.list("--budget-units", "");
    words.refuse_others();
    if (!only_info) {
        if (budgets.empty()) {
            throw std::invalid_argument("--budget-units is missing");
        }
        auto runs = json_object::array();
        for (const auto & budget : budgets) {
            for (const auto & policy : policies) {
                settings.policy = policy;
                settings.budget_units = options::whole("--budget-units", budget);
                const auto done = replay(trace, settings);
                runs.push_back({{"policy", policy},
                                {"budget_units", settings.budget_units},
                                {"max_resident_units", done.max_resident},
                                {"evictions", done.evictions},
                                {"forced_evictions", done.forced},
                                {"decode", part(done.decode)},
                                {"prefill", part(done.prefill)},
                                {"foreseen_units", done.foreseen},
                                {"foreseen_used", done.foreseen_used},
                                {"guessed", done.guessed},
                                {"guessed_right", done.guessed_right},
                                {"absent_guessed", done.absent_guessed},
                                {"absent_right", done.absent_right},
                                {"half_life_tokens", done.half_life_tokens}});
            }
        }
        output["runs"] = runs;
    }
    std::printf("%s\n", output.dump().c_str());
    return 0;
}

int main(int argc, char ** argv) {
    if (argc == 1 || (argc == 2 && std::string(argv[1]) == "--help")) {
        std::fputs(usage, argc == 1 ? stderr : stdout);
        return argc == 1 ? 2 : 0;
    }
    try {
        return simulate(argc, argv);
    } catch (const std::invalid_argument & error) {
        std::fprintf(stderr, "expert_simulator: %s (see --help)\n", error.what());
        return 2;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "expert_simulator: %s\n", error.what());
        return 1;
    }
}
