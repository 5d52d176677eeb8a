// Made-up conversations and states for the tests of the KV store: what a file must contain follows
// from its tokens, so that a reader can tell a right one from a wrong one.
#pragma once

#include "kv_store.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace samples {

using namespace llama_ai;

inline const kv_key model = {0x1111, 0x2222};

class directory {
public:
    explicit directory(const std::filesystem::path & below = std::filesystem::temp_directory_path())
        : path(below /
               ("llama-ai-kv-" + std::to_string(getpid()) + "-" + std::to_string(count++))) {}
    ~directory() {
        std::error_code ignored;
        std::filesystem::permissions(path, std::filesystem::perms::owner_all, ignored);
        std::filesystem::remove_all(path, ignored);
    }
    const std::filesystem::path path;

private:
    static inline int count = 0;
};

inline kv_store_options options(const directory & dir, uint64_t max_bytes = 1ull << 30) {
    kv_store_options result;
    result.dir = dir.path.string();
    result.max_bytes = max_bytes;
    return result;
}

// The conversation of a seed; two seeds share nothing, `shared` tokens at the start are seed 0's.
inline std::vector<int32_t> conversation(int seed, int count, int shared = 0) {
    std::vector<int32_t> tokens((size_t) count);
    for (int i = 0; i < count; i++) {
        const int owner = i < shared ? 0 : seed;
        tokens[(size_t) i] = (int32_t) (xxh64(&i, sizeof(i), (uint64_t) owner) % 30000);
    }
    return tokens;
}

// What a file of these tokens holds.
inline std::vector<uint8_t> content(const std::vector<int32_t> & tokens, int begin, int end,
                                    size_t size) {
    std::vector<uint8_t> bytes(size);
    uint64_t state = xxh64(tokens.data(), (size_t) end * 4, (uint64_t) begin);
    for (auto & byte : bytes) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        byte = (uint8_t) (state >> 56);
    }
    return bytes;
}

// Announces and writes one file; null when it was there.
inline kv_entry_ptr write(kv_store & store, const std::vector<int32_t> & tokens, int begin, int end,
                          kv_kind kind = kv_kind::segment, size_t size = 20000, uint32_t flags = 0,
                          const kv_key & fingerprint = model) {
    const auto bytes = content(tokens, begin, end, size);
    kv_header header;
    header.fingerprint = fingerprint;
    header.kind = kind;
    header.flags = flags;
    header.begin = begin;
    header.end = end;
    header.model = "sample.gguf";
    header.sections.resize(1);
    header.sections[0].size = size;
    kv_set_keys(header, kv_block_keys(fingerprint, 0, tokens.data(), (size_t) end));
    auto own = std::make_shared<std::vector<int32_t>>(tokens.begin(), tokens.begin() + end);
    const auto entry = store.announce(header, own);
    return entry && store.write(entry, {bytes.data()}) ? entry : nullptr;
}

inline kv_plan find(kv_store & store, const std::vector<int32_t> & tokens, bool partial = false,
                    const kv_key & fingerprint = model) {
    kv_query query;
    query.fingerprint = fingerprint;
    query.tokens = tokens.data();
    query.count = tokens.size();
    query.partial = partial;
    return store.find(query);
}

// Reads an entry; with `ok` its content is checked as well.
inline kv_read read(kv_store & store, const kv_entry_ptr & entry, bool * right = nullptr) {
    std::vector<uint8_t> bytes;
    kv_file_reader reader;
    auto status = store.open(
        *entry,
        [&](size_t size) {
            bytes.resize(size);
            return bytes.data();
        },
        reader);
    if (status == kv_read::ok) {
        for (size_t i = reader.block_count(); i-- > 0;) { // in any order
            reader.read_block(i);
        }
        status = reader.finish();
    }
    const auto & header = reader.header();
    if (status == kv_read::ok && right) {
        std::vector<int32_t> tokens((size_t) header.end);
        std::memcpy(tokens.data(), bytes.data() + kv_fixed_bytes, header.tokens_bytes());
        const auto & section = header.sections.at(0);
        const auto wanted = content(tokens, header.begin, header.end, section.size);
        *right = std::memcmp(bytes.data() + section.offset, wanted.data(), wanted.size()) == 0;
    }
    return status;
}

inline uint64_t bytes_in(const std::filesystem::path & dir) {
    uint64_t sum = 0;
    for (const auto & item : std::filesystem::directory_iterator(dir)) {
        sum += item.file_size();
    }
    return sum;
}

} // namespace samples
