#include "kv_tiers.h"

#include <stdexcept>

namespace llama_ai {

static double number(const std::string & flag, const std::string & text, double lowest) {
    size_t used = 0;
    double value = 0;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception &) {
        used = 0;
    }
    if (used != text.size() || text.empty() || !(value >= lowest) || value > 1e9) {
        throw std::invalid_argument(flag + ": not a number of at least " +
                                    std::to_string((int) lowest) + ": " + text);
    }
    return value;
}

kv_options kv_options_from(const std::map<std::string, std::string> & flags) {
    kv_options result;
    for (const auto & [flag, value] : flags) {
        if (flag == "--kv-dir") {
            result.dir = value;
        } else if (flag == "--kv-max-gib") {
            result.max_bytes = (uint64_t) (number(flag, value, 0) * (1 << 30));
        } else if (flag == "--kv-max-age-days") {
            result.max_age_s = (int64_t) (number(flag, value, 0) * 86400);
        } else if (flag == "--system-prompts") {
            result.system_prompts = (int) number(flag, value, 0);
        } else if (flag == "--kv-ram-mib") {
            number(flag, value, -1);
        }
    }
    if (flags.count("--kv-dir") && result.dir.empty()) {
        throw std::invalid_argument("--kv-dir: empty");
    }
    result.disk = !result.dir.empty() && !flags.count("--no-kv-disk");
    return result;
}

} // namespace llama_ai
