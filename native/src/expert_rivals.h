// Policies to compare ours with, for the simulator only.
#pragma once

#include "expert_trace.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace llama_ai {

class replay_policy {
public:
    virtual ~replay_policy() = default;
    // The router spoke: record number `index` of the trace. Before anything is loaded for it.
    virtual void used(const expert_routing & routing, size_t index) = 0;
    // The unit's turn in the record has come, and it is in memory.
    virtual void touched(int unit, size_t position) {
        (void) unit;
        (void) position;
    }
    virtual void loaded(int unit) = 0;
    virtual void evicted(int unit) = 0;
    // Which resident unit goes, of those that may; -1: none may.
    virtual int victim(const std::function<bool(int)> & evictable) = 0;
    // Streamed in bulk and not expected to be wanted again soon.
    virtual void cold(int unit) {
        (void) unit;
    }
    virtual double half_life_tokens() const {
        return 0;
    }
};

// The units of a trace in the order in which they are wanted: record by record, ascending.
std::vector<std::vector<int>> wanted_units(const expert_trace & trace);

// ours, lru, lfu, static, clock, belady; mmap and pr2101: how the kernel keeps a mapped file.
// Throws std::invalid_argument for another name.
std::unique_ptr<replay_policy> make_policy(const std::string & name, const expert_trace & trace,
                                           const std::vector<std::vector<int>> & wanted,
                                           int budget_units,
                                           const std::vector<double> & half_lives_tokens);

} // namespace llama_ai
