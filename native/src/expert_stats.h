// How the experts of a model are used: counts with and without decay, tokens, and which experts of
// consecutive layers go together. Kept in a file per model and loaded at the next start.
#pragma once

#include "expert_predict.h"
#include "expert_routing.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace llama_ai {

struct expert_shape {
    int n_layer = 0; // blocks, with those that have no experts
    int n_expert = 0;
    int n_used = 0; // experts a token
};

struct expert_stats_options {
    double half_life_tokens = 4096; // of the decayed counts
    size_t max_coactivation_bytes = 64u << 20;
};

enum class expert_load { loaded, missing, damaged, other_model };

// count() is called by the thread that computes; everything else by any thread.
class expert_stats {
public:
    explicit expert_stats(const expert_shape & shape, const expert_stats_options & options = {});

    // Once a layer and ubatch, layers ascending. Ignores warm-up, and everything while disabled.
    void count(const expert_routing & routing);

    void set_enabled(bool enabled) {
        on.store(enabled, std::memory_order_relaxed);
    }
    bool enabled() const {
        return on.load(std::memory_order_relaxed);
    }
    // Forgets everything, the loaded statistics too; the file changes at the next save.
    void reset();

    // How often a token chose each unit (layer * n_expert + expert) lately, 0..1, for
    // expert_policy::seed and prewarm. Zeros before anything was counted.
    std::vector<double> rates() const;
    // See expert_coactivation.
    std::vector<expert_guess> predict(int layer, const int32_t * chosen, int n_chosen, int k) const;
    int next(int layer) const;

    // GET /expert-stats, JSON text:
    //   {n_expert, n_expert_used, total_tokens, tracking_enabled, sample_every, coactivation_bytes,
    //    layers: [{layer, tokens, entropy_bits, recent_entropy_bits, top_shares: [{experts,
    //    share}],
    //              activations: [{expert, count, frequency}]}]}
    // Layers that were seen; experts that were used, most used first. frequency: share of the
    // layer's tokens that chose the expert. entropy_bits: of the distribution of uses over the
    // experts, at most log2(n_expert); recent_entropy_bits: with decay. top_shares: the share of
    // all uses that went to the most used 1/16, 1/8, 1/4 and 1/2 of the experts.
    std::string json() const;

    // Temporary file, fsync, rename. Throws std::system_error. False: nothing new since the last.
    bool save(const std::string & path, const std::string & model);
    // Adds what the file holds. Never throws for what is in it: one that cannot be understood is
    // renamed to PATH.damaged; one of another model or shape is left where it is, and the next
    // save replaces it. `why` says what was wrong, in one line.
    expert_load load(const std::string & path, const std::string & model, std::string & why);

    const expert_shape & shape() const {
        return size;
    }

private:
    struct layer_counts {
        std::vector<uint64_t> total; // [n_expert]
        std::vector<double> recent;  // [n_expert], a use now adds `weight`
        double recent_tokens = 0;    // a token now adds `weight`
        uint64_t tokens = 0;
        double weight = 1; // 2^(tokens since the last rescaling / half-life)
    };

    const expert_shape size;
    const expert_stats_options options;
    std::atomic<bool> on{true};
    mutable std::mutex mutex; // guards what follows
    std::vector<layer_counts> layers;
    expert_coactivation coactivation;
    int sample_every = 1; // the greatest seen
    uint64_t changes = 0, saved_changes = 0;
};

} // namespace llama_ai
