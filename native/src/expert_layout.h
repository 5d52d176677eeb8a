// What a model's experts look like on disk, and how they are laid out in memory. Pure.
//
// A unit is one expert of one layer with all its matrices: they are wanted together, so they share
// their fate. unit = layer * n_expert + expert.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llama_ai {

// The experts' matrices of one kind in one layer: one tensor of the file.
struct expert_matrix {
    std::string name;
    int layer = 0;
    int n_expert = 0;
    int file = 0;
    uint64_t offset = 0;           // of expert 0 in the file
    uint64_t slice_bytes = 0;      // of one expert; they lie one behind the other
    const char * mapped = nullptr; // where the loader mapped it

    int part = 0;         // its place in the unit
    uint64_t part_at = 0; // where its bytes begin in a slot, up to a page earlier in the file

    uint64_t slice_offset(int expert) const {
        return offset + slice_bytes * (uint64_t) expert;
    }
    // The pages of the file that hold a slice.
    uint64_t first_page(int expert) const;
    uint64_t end_page(int expert) const;
};

struct expert_layer {
    std::vector<int> matrices; // indices; gate and up before down
    uint64_t unit_bytes = 0;   // as read: the matrices alone
    uint64_t slot_bytes = 0;   // a multiple of a page
    int size_class = 0;
};

class expert_layout {
public:
    // Matrices whose names are those of wanted_expert_tensor(). Throws std::invalid_argument.
    explicit expert_layout(std::vector<expert_matrix> matrices);

    std::vector<expert_matrix> matrices;
    std::vector<expert_layer> layers; // [n_layer]; without matrices where a layer has no experts
    int n_expert = 0;                 // the most that a layer has
    int max_parts = 0;
    uint64_t total_bytes = 0; // of all units, as they are on disk
    // Slots come in a few sizes.
    std::vector<uint64_t> class_slot_bytes;
    std::vector<int> class_units;

    int n_units() const {
        return (int) layers.size() * n_expert;
    }
    int unit(int layer, int expert) const {
        return layer * n_expert + expert;
    }
    int layer_of(int unit) const {
        return unit / n_expert;
    }
    int expert_of(int unit) const {
        return unit % n_expert;
    }
    int n_experts_of(int layer) const {
        return layers[layer].matrices.empty() ? 0 : matrices[layers[layer].matrices[0]].n_expert;
    }
    // The next layer that has experts, or -1.
    int next_layer(int layer) const;

    // How many slots of each class a budget buys: the same share of every class, at least one
    // slot each, at most all. With one slot a class any budget works, if slowly.
    std::vector<int> slots_for(uint64_t budget_bytes) const;
};

// The layer of "blk.N.ffn_{gate,up,down,gate_up}_exps.weight", or -1 for any other name. `last`
// says whether the matrix is the one that is used last ("down").
int expert_tensor_layer(const std::string & name, bool * last = nullptr);

} // namespace llama_ai
