// Recorded routing: which experts each token chose in each layer. Written by the engine
// (--expert-trace), read by expert_simulator. The format is described in docs/expert-traces.md.
#pragma once

#include "expert_routing.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace llama_ai {

// One layer and ubatch of a trace.
struct expert_trace_record {
    int layer = 0;
    int n_used = 0;
    int n_tokens = 0;
    std::vector<int32_t> ids; // [n_tokens][n_used]
};

struct expert_trace {
    int n_layer = 0, n_expert = 0, n_used = 0;
    std::string model;
    std::vector<expert_trace_record> records;
    uint64_t dropped = 0; // records that the writer had to leave out
    bool complete = true; // false: the file ends in the middle of a block
};

// Throws std::runtime_error, what and where, for a file that is not a trace or is damaged. A file
// cut short (the engine was killed) is read up to its last whole block.
expert_trace read_expert_trace(const std::string & path);

// Writes beside the computation: add() copies into a bounded buffer and counts what does not fit as
// dropped; one thread of low priority writes. The file never exceeds max_bytes.
class expert_trace_writer {
public:
    // Throws std::system_error when the file cannot be made. Replaces an older file.
    expert_trace_writer(const std::string & path, int n_layer, int n_expert, int n_used,
                        const std::string & model, uint64_t max_bytes = 4ull << 30,
                        size_t buffer_bytes = 8u << 20);
    ~expert_trace_writer(); // writes what is there

    // Takes about as long as copying the ids. Never waits for the disk, never throws.
    void add(const expert_routing & routing);
    // The same, but waits for room instead of dropping: for programs that have the time.
    void add_waiting(const expert_routing & routing);

    uint64_t written_bytes() const;
    uint64_t dropped() const;
    // Empty, or why nothing more is written.
    std::string error() const;

private:
    size_t record_bytes(const expert_routing & routing) const;
    bool append(const expert_routing & routing); // under the lock; true: time to write
    void run();

    const int n_expert;
    const uint64_t max_bytes;
    const size_t buffer_bytes;
    const size_t enough; // to be written
    int file = -1;
    mutable std::mutex mutex; // guards what follows
    std::condition_variable wake, emptied;
    std::vector<uint8_t> filling;
    uint32_t filling_records = 0, filling_dropped = 0;
    uint64_t bytes = 0, all_dropped = 0;
    std::string failure;
    bool wanted = false, stop = false;
    std::thread thread;
};

} // namespace llama_ai
