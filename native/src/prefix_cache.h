// System prompts that mean the same and are not written the same: why a known one is not found.
#pragma once

#include <string>
#include <vector>

namespace llama_ai {

// The JSON objects in a text that are in no other object, each with its keys in order and without
// blanks; `raw` gets them as they stand.
std::vector<std::string> sorted_objects(const std::string & text, std::vector<std::string> & raw);

// Do two texts hold the same JSON objects, written in another way (keys or blanks)? Then the client
// could have had its prefix, had it always written them alike.
bool same_objects_written_differently(const std::string & one, const std::string & other);

} // namespace llama_ai
