// Our own command-line flags, taken out of argv before upstream's parser sees it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace llama_ai {

struct own_flag {
    const char * name; // with its dashes
    bool takes_value;
    const char * help; // begins with the value's name where the flag takes one
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

// What --help says of them, in upstream's form.
std::string own_help();

// In router mode this program starts itself for each model, with upstream's flags only. So ours
// travel in the environment as well: puts `own` there, and adds to `own` what a parent left.
void share_with_children(std::map<std::string, std::string> & own,
                         const std::vector<own_flag> & table);

} // namespace llama_ai
