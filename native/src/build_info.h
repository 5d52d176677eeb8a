// What this build is made of: BUILD_INFO.json, written beside the executable by the build.
#pragma once

#include <filesystem>
#include <string>

namespace llama_ai {

// The directory of the running executable. Throws std::runtime_error where the system does not
// tell.
std::filesystem::path executable_dir();

// The text of BUILD_INFO.json in `dir`. Throws std::runtime_error, naming the file, when it is
// missing or is not a JSON object.
std::string read_build_info(const std::filesystem::path & dir);

} // namespace llama_ai
