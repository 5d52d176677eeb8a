#include "expert_residency.h"

#include <stdexcept>

namespace llama_ai {

static uint64_t whole_number(const std::string & flag, const std::string & text, uint64_t lowest,
                             uint64_t highest) {
    uint64_t value = 0;
    bool good = !text.empty() && text.size() < 12;
    for (char c : text) {
        good = good && c >= '0' && c <= '9';
        value = value * 10 + (uint64_t) (c - '0');
    }
    if (!good || value < lowest || value > highest) {
        throw std::invalid_argument(flag + ": not a whole number from " + std::to_string(lowest) +
                                    " to " + std::to_string(highest) + ": " + text);
    }
    return value;
}

expert_options expert_options_from(const std::map<std::string, std::string> & flags) {
    expert_options result;
    for (const auto & [flag, value] : flags) {
        if (flag == "--expert-residency") {
            result.residency = true;
        } else if (flag == "--expert-budget-mib") {
            result.budget_bytes = whole_number(flag, value, 0, 1u << 30) << 20;
        } else if (flag == "--expert-prefetch-threads") {
            result.n_threads = (int) whole_number(flag, value, 1, 256);
        } else if (flag == "--expert-prewarm") {
            result.prewarm = true;
        } else if (flag == "--expert-tracking") {
            result.tracking = true;
        } else if (flag == "--expert-stats-file" || flag == "--expert-trace") {
            if (value.empty()) {
                throw std::invalid_argument(flag + ": empty");
            }
            (flag == "--expert-trace" ? result.trace_file : result.stats_file) = value;
        }
    }
    return result;
}

} // namespace llama_ai
