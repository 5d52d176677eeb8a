// memory_probe MODEL [LAYOUTS.json] [-v]: what the engine needs for each layout, in bytes.
//
// The layouts are a JSON list, from the file or from stdin. One JSON object goes to stdout. Nothing
// of the model's or the contexts' memory is allocated. See native/README.md for both formats.

#include "probe_layout.h"
#include "probe_measure.h"
#include "probe_worker.h"

#include "ggml-backend.h"
#include "llama.h"
#include "log.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

using json = nlohmann::json;

static constexpr int EXIT_USAGE = 2;
static constexpr int EXIT_NO_MODEL = 4;
static constexpr int EXIT_NOTHING_MEASURED = 5;

static std::string dump(const json & value) {
    return value.dump(-1, ' ', false,
                      json::error_handler_t::replace); // file names need not be UTF-8
}

static int fail(int status, const std::string & message) {
    std::fprintf(stderr, "memory_probe: %s\n", message.c_str());
    return status;
}

// The engine explains a failure in its log and returns null, so keep its last errors.
static std::string last_errors;

static void keep_errors(ggml_log_level level, const char * text, void * verbose) {
    if (verbose != nullptr) {
        std::fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR) {
        last_errors += text;
    }
}

// The different lines of `text`, joined: the engine says some things once per layer.
static std::string one_line(const std::string & text) {
    std::istringstream lines(text);
    std::vector<std::string> seen;
    std::string result;
    for (std::string line; std::getline(lines, line);) {
        if (!line.empty() && std::find(seen.begin(), seen.end(), line) == seen.end()) {
            seen.push_back(line);
            result += (result.empty() ? "" : "; ") + line;
        }
    }
    return result;
}

static std::string measure_layout(llama_ai::prober & prober, const std::string & model,
                                  const json & layout) {
    json answer = {
        {"name", layout.is_object() && layout.contains("name") ? layout["name"] : json(nullptr)}};
    last_errors.clear();
    try {
        answer.update(prober.measure(llama_ai::params_of_layout(model, layout),
                                     llama_ai::model_key_of_layout(layout)));
    } catch (const std::exception & error) {
        std::string message = one_line(error.what());
        if (!last_errors.empty()) {
            message += ": " + one_line(last_errors);
        }
        answer["error"] = message;
    }
    return dump(answer);
}

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    bool verbose = false;
    std::vector<std::string> words;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word == "-v") {
            verbose = true;
        } else if (word.size() > 1 && word[0] == '-') {
            return fail(EXIT_USAGE, "unknown option " + word +
                                        "; usage: memory_probe MODEL [LAYOUTS.json] [-v]");
        } else {
            words.push_back(word);
        }
    }
    if (words.empty() || words.size() > 2) {
        return fail(EXIT_USAGE, "usage: memory_probe MODEL [LAYOUTS.json] [-v]");
    }
    const std::string & model = words[0];
    if (!std::ifstream(model, std::ios::binary) || std::filesystem::is_directory(model)) {
        return fail(EXIT_NO_MODEL, "cannot read " + model);
    }
    std::ifstream file;
    const bool from_stdin = words.size() == 1 || words[1] == "-";
    if (!from_stdin) {
        file.open(words[1], std::ios::binary);
        if (!file) {
            return fail(EXIT_USAGE, "cannot read " + words[1]);
        }
    }
    std::istream & input = from_stdin ? std::cin : file;
    const std::string text{std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
    const json layouts = json::parse(text, nullptr, /* allow_exceptions */ false);
    if (!layouts.is_array()) {
        return fail(EXIT_USAGE, "the layouts are not a JSON list");
    }

    llama_ai::prober prober;
    bool started = false;
    const auto work = [&](size_t i) { // runs in a child process, which has its own `started`
        if (!started) {
            common_log_pause(common_log_main()); // upstream's own log; ours is the callback below
            llama_log_set(keep_errors, verbose ? &last_errors : nullptr);
            ggml_backend_load_all();
            llama_backend_init();
            started = true;
        }
        return measure_layout(prober, model, layouts[i]);
    };
    size_t at = 0;
    std::vector<std::string> answers;
    try {
        answers =
            llama_ai::run_isolated(layouts.size(), verbose, work, [&](const std::string & reason) {
                return dump({{"name", nullptr}, {"error", one_line(reason)}});
            });
    } catch (const std::exception & error) {
        return fail(EXIT_NOTHING_MEASURED, error.what());
    }
    json result = {
        {"schema", "llama-ai.memory-probe/1"}, {"model", model}, {"layouts", json::array()}};
    bool measured = layouts.empty();
    for (const auto & answer : answers) {
        auto entry = json::parse(answer);
        if (layouts[at].is_object() && layouts[at].contains("name")) {
            entry["name"] = layouts[at]["name"]; // a layout that ended the engine has a name too
        }
        measured = measured || !entry.contains("error");
        result["layouts"].push_back(entry);
        at++;
    }
    std::puts(dump(result).c_str());
    return measured ? 0 : EXIT_NOTHING_MEASURED;
}
