// Reads experts of the next layer before its router has spoken: the next router
// is applied to what this layer's router saw (expert_early_router), on a thread
// of its own beside the computation. Only guesses of which most came true
// lately, at that place and for that layer, are read.
#pragma once

#include "expert_cache.h"
#include "expert_predict.h"
#include "expert_routing.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace llama_ai {

class expert_ahead {
public:
    // `cache` must outlive this.
    expert_ahead(expert_cache & cache, expert_early_router router);
    ~expert_ahead();

    // Thread 0, at the start of a layer, with the input of its experts (n_embd
    // floats). One token only. Copies, and returns at once.
    void chosen(const expert_routing & routing, const float * input, int n_embd);

private:
    void work();

    expert_cache & cache;
    const expert_early_router router;
    std::mutex mutex; // guards the job
    std::condition_variable wake;
    bool waiting = false, stop = false;
    int layer = -1;
    std::vector<int32_t> experts;
    std::vector<float> input;

    // The thread's own.
    expert_prediction_score score;
    int guessed_layer = -1;
    std::vector<expert_guess> guesses; // for it, of experts that were not in memory
    std::thread thread;
};

} // namespace llama_ai
