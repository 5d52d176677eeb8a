#include "check.h"
#include "own_flags.h"

#include <stdexcept>

using llama_ai::own_flag;
using llama_ai::split;
using words = std::vector<std::string>;

int main() {
    const std::vector<own_flag> table = {{"--kv-dir", true, "DIR: x"}, {"--tracking", false, "y"}};

    // Ours are taken out; the rest keeps its order, the program's name included.
    auto args =
        split({"server", "-m", "a.gguf", "--kv-dir", "/kv", "--port", "1", "--tracking"}, table);
    CHECK((args.engine == words{"server", "-m", "a.gguf", "--port", "1"}));
    CHECK(args.own.size() == 2);
    CHECK(args.own.at("--kv-dir") == "/kv");
    CHECK(args.own.at("--tracking").empty());

    // An unknown flag, and a flag that only begins like one of ours, is the engine's business.
    args = split({"server", "--nonsense", "--tracking-more", "--kv-dir=/x"}, table);
    CHECK((args.engine == words{"server", "--nonsense", "--tracking-more", "--kv-dir=/x"}));
    CHECK(args.own.empty());

    // The name of the program is never a flag, and a value may look like one.
    args = split({"--tracking", "--kv-dir", "--tracking"}, table);
    CHECK((args.engine == words{"--tracking"}));
    CHECK(args.own.size() == 1);
    CHECK(args.own.at("--kv-dir") == "--tracking");

    // The last of two wins.
    args = split({"server", "--kv-dir", "a", "--kv-dir", "b"}, table);
    CHECK(args.own.at("--kv-dir") == "b");

    bool thrown = false;
    try {
        split({"server", "--kv-dir"}, table);
    } catch (const std::invalid_argument & error) {
        thrown = std::string(error.what()).find("--kv-dir") != std::string::npos;
    }
    CHECK(thrown);

    // The server's own table.
    args = split({"server", "--build-info", "-c", "0"}, llama_ai::own_flags());
    CHECK(args.own.count("--build-info") == 1);
    CHECK((args.engine == words{"server", "-c", "0"}));
    for (const auto & flag : llama_ai::own_flags()) {
        CHECK(llama_ai::own_help().find("\n" + std::string(flag.name) + " ") != std::string::npos);
    }

    // What a parent was told its children know; what they are told themselves wins.
    std::map<std::string, std::string> parent = {{"--kv-dir", "/kv"}, {"--tracking", ""}};
    llama_ai::share_with_children(parent, table);
    std::map<std::string, std::string> child;
    llama_ai::share_with_children(child, table);
    CHECK(child == parent);
    child = {{"--kv-dir", "/other"}};
    llama_ai::share_with_children(child, table);
    CHECK(child.at("--kv-dir") == "/other" && child.count("--tracking") == 1);
    return 0;
}
