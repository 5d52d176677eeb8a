// The process's expert tracking: statistics, their file, and the trace, behind a few calls.
#pragma once

#include "expert_routing.h"
#include "expert_stats.h"

#include <functional>
#include <memory>
#include <string>

namespace llama_ai {

struct expert_tracking_options {
    bool enabled = true;    // --expert-tracking: at the start; POST /expert-tracking changes it
    std::string stats_file; // --expert-stats-file; empty: nothing is kept
    std::string trace_file; // --expert-trace; empty: nothing is recorded
    int save_every_s = 300;
    // One line for the log; called on any thread.
    std::function<void(const std::string &)> warn = [](const std::string &) {};
};

// Once the model is known, or known again after sleep. `model` names it in the files. Loads the
// statistics; a problem with their file is a warning. Throws std::system_error when the trace's
// file cannot be made.
void expert_tracking_start(const expert_tracking_options & options, const expert_shape & shape,
                           const std::string & model);
// Saves, ends the trace. Nothing may compute meanwhile. Harmless twice, or without start.
void expert_tracking_stop();

// From the thread that computes, once a layer and ubatch, layers ascending. Does nothing before
// start.
void expert_tracking_observe(const expert_routing & routing);

// Null before start and after stop.
std::shared_ptr<expert_stats> expert_tracking_stats();

// Bodies of GET /expert-stats, and of POST /expert-tracking ({"enabled": bool, "reset": bool}, both
// optional; it answers with how it is now). `status`: 200; 400 for a body that is not that; 503
// before start or for a model without experts. `status` other than 200: an error object.
std::string expert_stats_response(int & status);
std::string expert_tracking_response(const std::string & body, int & status);

} // namespace llama_ai
