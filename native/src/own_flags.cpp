#include "own_flags.h"

#include <algorithm>
#include <stdexcept>

namespace llama_ai {

const std::vector<own_flag> & own_flags() {
    static const std::vector<own_flag> table = {
        {"--build-info", false},
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

} // namespace llama_ai
