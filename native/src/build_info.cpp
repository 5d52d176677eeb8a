#include "build_info.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <iterator>
#include <stdexcept>

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

namespace llama_ai {

std::filesystem::path executable_dir() {
#if defined(__APPLE__)
    uint32_t size = 0;
    _NSGetExecutablePath(nullptr, &size);
    std::string name(size, '\0');
    if (_NSGetExecutablePath(name.data(), &size) != 0) {
        throw std::runtime_error("the system does not tell where this program lies");
    }
    return std::filesystem::canonical(name.c_str()).parent_path();
#else
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) {
        throw std::runtime_error("cannot read /proc/self/exe: " + error.message());
    }
    return path.parent_path();
#endif
}

std::string read_build_info(const std::filesystem::path & dir) {
    const auto path = dir / "BUILD_INFO.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error("cannot read " + path.string() +
                                 ": this build was not finished by `llama-ai build`");
    }
    std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!nlohmann::json::parse(text, nullptr, /* allow_exceptions */ false).is_object()) {
        throw std::runtime_error(path.string() + " is not a JSON object");
    }
    return text;
}

} // namespace llama_ai
