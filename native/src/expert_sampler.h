// Routing of experts that a GPU computes. There is no hook in the kernels there; the scheduler's
// evaluation callback shows a graph's nodes, at the price of ending the backend's submission at
// each node that is looked at. So one computation of so many is looked at, and at one node a layer.
//
// That node is the layer's first MUL_MAT_ID, not the choice itself (ffn_moe_topk): the choice stays
// in one piece with the softmax before it, which GPU backends fuse into one kernel with slightly
// different rounding; a sampled token must not come out differently. The ids are still there after
// the product, because the layer's other products need them too or had their memory kept for this.
#pragma once

#include "expert_routing.h"

#include <cstdint>
#include <functional>
#include <vector>

struct ggml_backend_sched;
struct ggml_tensor;

namespace llama_ai {

class expert_sampler {
public:
    // Looks at one computation of `every`. `host` too: experts in host memory, which the CPU
    // backend's own hook reports otherwise.
    expert_sampler(int every, std::function<void(const expert_routing &)> observe,
                   bool host = false);

    // Right before a graph is computed with this scheduler. The first scheduler seen is the one
    // that is looked at (a draft model comes later, and has its own); its callback must be free.
    // `wanted`: false while nobody wants to know.
    void before(ggml_backend_sched * sched, bool wanted = true);

    // The scheduler's callback: ask = true, is this node wanted; false, here it is.
    bool node(ggml_tensor * tensor, bool ask);

private:
    void read(const ggml_tensor * product);

    const int every;
    const std::function<void(const expert_routing &)> observe;
    const bool host;
    ggml_backend_sched * owner = nullptr;
    int countdown = 1;
    bool watching = false;
    int found = 0; // layers in the computation that was looked at
    int empty = 0; // computations looked at that had none
    const ggml_tensor * last_ids = nullptr;
    std::vector<int32_t> ids;
    std::vector<int64_t> rows;
};

} // namespace llama_ai
