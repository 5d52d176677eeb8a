// Our own command-line flags, taken out of argv before upstream's parser sees it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace llama_ai {

struct own_flag {
    const char * name; // with its dashes
    bool takes_value;
};

struct split_args {
    std::map<std::string, std::string> own; // flag -> value; empty for a flag that takes none
    std::vector<std::string> engine;        // argv[0] and everything that is not ours, in order
};

// The flags that llama-ai-server knows.
const std::vector<own_flag> & own_flags();

// Splits `args` (argv as strings). A flag given twice keeps its last value. Every word that is not
// in `table` goes to the engine, which also rejects unknown ones.
// Throws std::invalid_argument when a flag lacks its value.
split_args split(const std::vector<std::string> & args, const std::vector<own_flag> & table);

} // namespace llama_ai
