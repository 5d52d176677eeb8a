#include "build_info.h"
#include "check.h"

#include <unistd.h>

#include <fstream>
#include <stdexcept>

namespace fs = std::filesystem;

// The message of the error, or nothing when there was none.
static std::string error_of(const fs::path & dir) {
    try {
        llama_ai::read_build_info(dir);
    } catch (const std::runtime_error & error) {
        return error.what();
    }
    return "";
}

static void write(const fs::path & path, const std::string & text) {
    std::ofstream(path, std::ios::binary) << text;
}

int main() {
    const fs::path dir = fs::temp_directory_path() / ("llama-ai-test-" + std::to_string(getpid()));
    fs::create_directory(dir);
    const fs::path file = dir / "BUILD_INFO.json";

    CHECK(error_of(dir).find(file.string()) != std::string::npos);
    write(file, "{\"upstream_commit\": \"abc\"");
    CHECK(error_of(dir).find("not a JSON object") != std::string::npos);
    write(file, "[1]");
    CHECK(error_of(dir).find("not a JSON object") != std::string::npos);
    write(file, "{\"upstream_commit\": \"abc\"}\n");
    CHECK(llama_ai::read_build_info(dir) == "{\"upstream_commit\": \"abc\"}\n");

    CHECK(fs::exists(llama_ai::executable_dir() / "test-build-info"));
    fs::remove_all(dir);
    return 0;
}
