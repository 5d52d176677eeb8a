// Replays recorded routing against a policy: what would have been in memory, and how long it would
// have taken.
//
// Memory: the units that a layer's router chose are wanted in ascending order. One that is not
// there is read, and a unit goes for it when the budget is used up; units of the same layer that
// are still waiting for their turn stay (unless nothing else is left to go).
//
// Time, one disk and one computation side by side. A layer first computes what is dense, then its
// experts in turn, each when it is there. The disk serves one unit after the other at disk_bytes_s;
// disk_latency_s passes between asking and the first byte, for any number of units at once.
//   - all but mmap: when the router has spoken, all missing units are asked for at once.
//   - prefill (a step of at least stream_tokens tokens): the next layers are asked for in order,
//     before their routers have spoken, as far as `ring_units` slots reach; pr2101: whole layers,
//     pr2101_ahead of them, without regard to what is wanted, and put at the cold end after use.
//   - mmap: a unit is read when its turn comes, at fault_bytes_s, and computing waits.
#pragma once

#include "expert_trace.h"

#include <cstdint>
#include <string>
#include <vector>

namespace llama_ai {

struct replay_options {
    std::string policy = "ours"; // see make_policy()
    int budget_units = 0;
    std::vector<double> half_lives_tokens; // ours; empty: its own
    int skip_tokens = 0;                   // left out of all figures: the caches fill

    double unit_bytes = 4 << 20;
    double disk_bytes_s = 2e9;
    double fault_bytes_s = 2e8;
    double disk_latency_s = 1e-4;
    double layer_s = 2e-4;        // dense work of a layer for a step of one token
    double layer_token_s = 2e-5;  // and for each further token
    double expert_s = 5e-5;       // one expert for one token
    double expert_token_s = 1e-5; // and for each further token
    int stream_tokens = 32;
    int ring_units = 32;
    int pr2101_ahead = 3;

    // Ours, single tokens: while a layer computes, up to `foresee` units of the next layer are read
    // that are not there and have at least this share of coming true, as measured so far on guesses
    // that were not there. Guesses are made by co-activation; or, with foresee_recall > 0, by a
    // predictor that names each expert to come with this probability and strangers for the rest.
    int foresee = 0;
    double foresee_share = 0.5;
    double foresee_recall = 0;
};

struct replay_part {
    uint64_t tokens = 0, accesses = 0, hits = 0;
    uint64_t read_units = 0; // demand and ahead of it
    double seconds = 0;
    double stall_seconds = 0; // computing waited for the disk
};

struct replay_result {
    replay_part decode, prefill;
    uint64_t evictions = 0;
    uint64_t forced = 0; // of units whose turn was still to come
    int max_resident = 0;
    uint64_t foreseen = 0, foreseen_used = 0; // units read ahead; of which then wanted
    // Guesses, as many as a token takes experts: resident or not, and of those that were not.
    uint64_t guessed = 0, guessed_right = 0;
    uint64_t absent_guessed = 0, absent_right = 0;
    double half_life_tokens = 0;
};

// Throws std::invalid_argument for options that make no sense.
replay_result replay(const expert_trace & trace, const replay_options & options);

} // namespace llama_ai
