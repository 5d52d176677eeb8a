// Experts of the models of this process: what upstream's hooks call, and what there is to see.
#pragma once

#include "expert_cache.h"

#include <cstdint>
#include <map>
#include <string>

struct common_params;

namespace llama_ai {

struct expert_options {
    bool residency = false;    // --expert-residency
    uint64_t budget_bytes = 0; // --expert-budget-mib; 0: the kernel decides
    int n_threads = 4;         // --expert-prefetch-threads
    bool prewarm = false;      // --expert-prewarm
    bool tracking = false;     // --expert-tracking
    std::string stats_file;    // --expert-stats-file
    std::string trace_file;    // --expert-trace

    bool any() const {
        return residency || tracking || !trace_file.empty();
    }
};

// Throws std::invalid_argument for a value that makes no sense.
expert_options expert_options_from(const std::map<std::string, std::string> & flags);

// Sets the hooks, and in `params` what residency needs: dense weights in memory of their own, no
// warm-up run (it asks for every expert), no backend that copies experts to its device. Before the
// model is loaded. Without any of the flags nothing is set.
void install_experts(const expert_options & options, common_params & params);

// Saves what was learned. Before the process ends.
void finish_experts();

// Sums over the models; see GET /residency.
struct expert_report {
    bool enabled = false;
    int models = 0; // with experts on disk
    uint64_t units = 0, total_bytes = 0, budget_bytes = 0, memory_bytes = 0;
    bool direct = true;
    std::string last_error; // the latest read that failed, or empty
    expert_counters counters;
};
expert_report expert_status();

std::string expert_residency_json();
std::string expert_metrics_text(); // empty while residency is off

// One line about what happened between two looks at the counters.
std::string expert_summary(const expert_counters & before, const expert_counters & after);

} // namespace llama_ai
