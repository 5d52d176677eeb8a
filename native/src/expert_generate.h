// Synthetic routing, for comparing policies on workloads of known kind.
#pragma once

#include "expert_trace.h"

#include <cstdint>
#include <string>

namespace llama_ai {

struct expert_workload {
    // Each token takes the experts with the n_used greatest values of
    //   -zipf * ln(rank) + topic * T + link * Y + Gumbel noise
    // (without topic and link: n_used draws without replacement from a Zipf distribution). Ranks
    // are a random order of the experts in each layer. T and Y are normal, made from 16 values that
    // all layers share through random weights, so that layers depend on each other: T moves slowly
    // from token to token, Y is new for each token.
    double zipf = 1;
    double topic = 0;
    double topic_half_life = 50; // tokens after which half of T's correlation is left
    double link = 0;
    int swap_every = 0;  // each so many tokens, two experts of a layer change ranks
    int shift_every = 0; // each so many tokens, all ranks are drawn anew
    int streams = 1;     // conversations in turn, each with its own T; one step decodes them all
    // Not 0: prompts of so many tokens, each followed by `reply` single tokens.
    int prompt = 0;
    int reply = 128;
    int ubatch = 512;

    int n_layer = 24, n_expert = 64, n_used = 4;
    int tokens = 1000;
    uint64_t seed = 1;
};

// "zipf:1.0,swap:4,shift:300,topic:2.5/50,link:1,streams:4,prompt:512/128/512", in any order; what
// is left out stays. Throws std::invalid_argument.
void parse_workload(const std::string & text, expert_workload & workload);

expert_trace generate_trace(const expert_workload & workload);

} // namespace llama_ai
