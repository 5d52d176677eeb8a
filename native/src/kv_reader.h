// One file of the KV store on its way into memory: everything about it is checked, and its sections
// are read in blocks, which several threads may share among them.
#pragma once

#include "kv_format.h"
#include "kv_posix.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace llama_ai {

enum class kv_read { ok, missing, damaged, failed };

class kv_file_reader {
public:
    // Opens a file, asks `allocate(bytes)` for memory, reads what comes before the sections and
    // checks that it is what `expected` says. Only with ok may there be blocks to read.
    kv_read open(const std::string & path, const kv_header & expected,
                 const std::function<uint8_t *(size_t)> & allocate);

    size_t block_count() const {
        return blocks.size();
    }
    // Each block once, in any order, on any thread.
    void read_block(size_t index);
    // After the last block: whether all of the file is right. Sections then lie in the memory at
    // their offsets.
    kv_read finish() const;

    const kv_header & header() const {
        return read_header;
    }

private:
    struct block {
        uint64_t offset;
        size_t size;
        uint64_t checksum;
    };

    file_handle file;
    uint8_t * bytes = nullptr;
    kv_header read_header;
    std::vector<block> blocks; // in the order of the sections
    std::atomic<bool> failed{false};
};

} // namespace llama_ai
