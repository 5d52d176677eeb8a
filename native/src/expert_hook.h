// Where upstream calls us for the experts of a mixture-of-experts model (native/patches/0004): the
// loader, to leave expert matrices on disk, and the CPU backend, to ask where a matrix is. The
// table is part of libggml-base, which the CPU backend (loaded at run time), libllama and the
// server share. Every pointer is null until llama-ai-server sets it; with null hooks upstream
// behaves as upstream.
//
// Set once before a model is loaded, so read without a lock. C, because ggml-cpu.c is.
#pragma once

#include "ggml.h"

#include <stddef.h>
#include <stdint.h>

struct ggml_backend_sched;

#ifdef __cplusplus
extern "C" {
#endif

struct llama_ai_expert_hooks {
    // True: leave this tensor of the file on disk, behind a mapping that nobody has touched yet.
    bool (*wanted)(const char * name, const struct ggml_tensor * meta);
    // A tensor got its place in such a mapping (`tensor->data`). `fd` is the file, which upstream
    // closes after loading; `offset` is where the tensor begins in it.
    void (*placed)(const struct ggml_tensor * tensor, int fd, size_t offset);
    // All tensors of `model` (a llama_model) are in place; it is about to be destroyed, and its
    // mappings with it (also after a load that failed).
    void (*loaded)(const void * model);
    void (*unloaded)(const void * model);
    // Thread 0, before an operation over the experts begins: expert e will be applied to rows[e]
    // rows of `input` (which `ids` chose). The other threads wait for thread 0 meanwhile.
    void (*need)(const struct ggml_tensor * weights, const struct ggml_tensor * input,
                 const struct ggml_tensor * ids, const int64_t * rows, int n_threads);
    // Every thread, after that: in which order to go through the experts (a permutation of all of
    // them), or null for ascending. The order changes nothing in what is computed: each expert has
    // rows of the result to itself.
    const int32_t * (*order)(const struct ggml_tensor * weights);
    // Every thread, in this order, once for each expert that has rows: where the matrix of this
    // expert is. `data` is where upstream would look. Blocks until it is there.
    const char * (*slice)(const struct ggml_tensor * weights, int64_t expert, int thread,
                          const char * data);
    // A graph is about to be computed by this scheduler.
    void (*compute)(struct ggml_backend_sched * sched);
    // A graph was computed with this status (enum ggml_status): the status to go on with.
    int (*computed)(int status);
};

GGML_API struct llama_ai_expert_hooks llama_ai_expert_hooks;

static inline bool llama_ai_expert_wanted(const char * name, const struct ggml_tensor * meta) {
    return llama_ai_expert_hooks.wanted && llama_ai_expert_hooks.wanted(name, meta);
}

static inline void llama_ai_expert_placed(const struct ggml_tensor * tensor, int fd,
                                          size_t offset) {
    if (llama_ai_expert_hooks.placed) {
        llama_ai_expert_hooks.placed(tensor, fd, offset);
    }
}

static inline void llama_ai_expert_loaded(const void * model) {
    if (llama_ai_expert_hooks.loaded) {
        llama_ai_expert_hooks.loaded(model);
    }
}

static inline void llama_ai_expert_unloaded(const void * model) {
    if (llama_ai_expert_hooks.unloaded) {
        llama_ai_expert_hooks.unloaded(model);
    }
}

static inline void llama_ai_expert_need(const struct ggml_tensor * weights,
                                        const struct ggml_tensor * input,
                                        const struct ggml_tensor * ids, const int64_t * rows,
                                        int n_threads) {
    if (llama_ai_expert_hooks.need) {
        llama_ai_expert_hooks.need(weights, input, ids, rows, n_threads);
    }
}

static inline const int32_t * llama_ai_expert_order(const struct ggml_tensor * weights) {
    return llama_ai_expert_hooks.order ? llama_ai_expert_hooks.order(weights) : NULL;
}

static inline const char * llama_ai_expert_slice(const struct ggml_tensor * weights, int64_t expert,
                                                 int thread, const char * data) {
    return llama_ai_expert_hooks.slice ? llama_ai_expert_hooks.slice(weights, expert, thread, data)
                                       : data;
}

static inline void llama_ai_expert_compute(struct ggml_backend_sched * sched) {
    if (llama_ai_expert_hooks.compute) {
        llama_ai_expert_hooks.compute(sched);
    }
}

static inline int llama_ai_expert_computed(int status) {
    return llama_ai_expert_hooks.computed ? llama_ai_expert_hooks.computed(status) : status;
}

#ifdef __cplusplus
}
#endif
