#include "own_flags.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <stdexcept>

namespace llama_ai {

const std::vector<own_flag> & own_flags() {
    static const std::vector<own_flag> table = {
        {"--build-info", false, "print what this engine was built from, and exit"},
        {"--kv-dir", true, "DIR: keep conversations in this directory (readable transcripts)"},
        {"--kv-max-gib", true, "N: GiB that they may take, all models together (20)"},
        {"--kv-ram-mib", true, "N: MiB of memory for earlier prompts, as --cache-ram"},
        {"--kv-max-age-days", true, "N: days without use after which they are dropped (30)"},
        {"--system-prompts", true, "N: system prompts that are dropped last (8)"},
        {"--no-kv-disk", false, "keep nothing on disk, whatever --kv-dir says"},
        {"--expert-residency", false,
         "leave a MoE model's experts on disk and keep some in memory"},
        {"--expert-budget-mib", true, "N: MiB of memory for experts; 0 = the kernel decides (0)"},
        {"--expert-prefetch-threads", true, "N: threads that read experts (4)"},
        {"--expert-prewarm", false,
         "begin with the experts that were used most (--expert-stats-file)"},
        {"--expert-tracking", false, "count which experts are used (GET /expert-stats)"},
        {"--expert-stats-file", true, "FILE: keep these counts in it"},
        {"--expert-trace", true, "FILE: record which experts each token uses"},
        {"--refused-models", true, "FILE: of a router: models that do not fit, and why (JSON)"},
    };
    return table;
}

split_args split(const std::vector<std::string> & args, const std::vector<own_flag> & table) {
    split_args result;
    for (size_t i = 0; i < args.size(); i++) {
        const auto flag = std::find_if(table.begin(), table.end(), [&](const own_flag & entry) {
            return args[i] == entry.name;
        });
        if (i == 0 || flag == table.end()) {
            result.engine.push_back(args[i]);
            continue;
        }
        if (!flag->takes_value) {
            result.own[args[i]] = "";
            continue;
        }
        if (i + 1 == args.size()) {
            throw std::invalid_argument(args[i] + " needs a value");
        }
        result.own[args[i]] = args[i + 1];
        i++;
    }
    return result;
}

std::string own_help() {
    std::string text = "----- llama-ai's own flags -----\n\n";
    for (const auto & flag : own_flags()) {
        const std::string help = flag.help;
        const size_t colon = flag.takes_value ? help.find(": ") : std::string::npos;
        std::string left = flag.name;
        if (colon != std::string::npos) {
            left += " " + help.substr(0, colon);
        }
        left.resize(std::max<size_t>(left.size() + 1, 40), ' ');
        text += left + (colon == std::string::npos ? help : help.substr(colon + 2)) + "\n";
    }
    return text + "\n";
}

static std::string variable(const char * flag) {
    std::string name = "LLAMA_AI_ENGINE";
    for (const char * c = flag + 1; *c; c++) {
        name += *c == '-' ? '_' : (char) std::toupper((unsigned char) *c);
    }
    return name;
}

void share_with_children(std::map<std::string, std::string> & own,
                         const std::vector<own_flag> & table) {
    for (const auto & flag : table) {
        const std::string name = variable(flag.name);
        const char * inherited = std::getenv(name.c_str());
        if (own.count(flag.name)) {
            setenv(name.c_str(), own[flag.name].c_str(), 1);
        } else if (inherited) {
            own[flag.name] = inherited;
        }
    }
}

} // namespace llama_ai
