#include "prefix_cache.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace llama_ai {

// The place after the object that begins at `begin`, or npos.
static size_t end_of_object(const std::string & text, size_t begin) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = begin; i < text.size(); i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{') {
            depth++;
        } else if (c == '}' && --depth == 0) {
            return i + 1;
        }
    }
    return std::string::npos;
}

std::vector<std::string> sorted_objects(const std::string & text, std::vector<std::string> & raw) {
    std::vector<std::string> sorted;
    for (size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at)) {
        const size_t end = end_of_object(text, at);
        if (end == std::string::npos) {
            at++;
            continue;
        }
        const std::string object = text.substr(at, end - at);
        // nlohmann::json keeps the keys of an object in order.
        const auto value = nlohmann::json::parse(object, nullptr, false);
        if (value.is_object() && value.size() >= 2) {
            sorted.push_back(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
            raw.push_back(object);
            at = end;
        } else {
            at++;
        }
    }
    return sorted;
}

bool same_objects_written_differently(const std::string & one, const std::string & other) {
    std::vector<std::string> raw_one;
    std::vector<std::string> raw_other;
    auto sorted_one = sorted_objects(one, raw_one);
    auto sorted_other = sorted_objects(other, raw_other);
    if (sorted_one.empty() || raw_one == raw_other) {
        return false;
    }
    std::sort(sorted_one.begin(), sorted_one.end());
    std::sort(sorted_other.begin(), sorted_other.end());
    return sorted_one == sorted_other;
}

} // namespace llama_ai
