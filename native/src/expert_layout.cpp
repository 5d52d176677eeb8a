#include "expert_layout.h"

#include "expert_files.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

namespace llama_ai {

static uint64_t round_down(uint64_t value) {
    return value / expert_page * expert_page;
}

static uint64_t round_up(uint64_t value) {
    return round_down(value + expert_page - 1);
}

uint64_t expert_matrix::first_page(int expert) const {
    return round_down(slice_offset(expert));
}

uint64_t expert_matrix::end_page(int expert) const {
    return round_up(slice_offset(expert) + slice_bytes);
}

int expert_tensor_layer(const std::string & name, bool * last) {
    // By hand: called for each operation over experts.
    if (name.compare(0, 4, "blk.") != 0) {
        return -1;
    }
    int layer = 0;
    size_t end = 4;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9' && layer < 100000) {
        layer = 10 * layer + (name[end++] - '0');
    }
    if (end == 4 || end >= name.size() || name[end] != '.') {
        return -1;
    }
    const char * kind = name.c_str() + end + 1;
    const bool down = std::strcmp(kind, "ffn_down_exps.weight") == 0;
    if (!down && std::strcmp(kind, "ffn_gate_exps.weight") != 0 &&
        std::strcmp(kind, "ffn_up_exps.weight") != 0 &&
        std::strcmp(kind, "ffn_gate_up_exps.weight") != 0) {
        return -1;
    }
    if (last) {
        *last = down;
    }
    return layer;
}

expert_layout::expert_layout(std::vector<expert_matrix> given) : matrices(std::move(given)) {
    std::stable_sort(matrices.begin(), matrices.end(), [](const auto & a, const auto & b) {
        bool a_last = false, b_last = false;
        expert_tensor_layer(a.name, &a_last);
        expert_tensor_layer(b.name, &b_last);
        return a.layer != b.layer ? a.layer < b.layer : a_last < b_last;
    });
    for (int i = 0; i < (int) matrices.size(); i++) {
        auto & matrix = matrices[i];
        if (matrix.layer < 0 || matrix.n_expert < 1 || matrix.slice_bytes == 0) {
            throw std::invalid_argument(matrix.name + ": not an expert tensor");
        }
        if (matrix.layer >= (int) layers.size()) {
            layers.resize(matrix.layer + 1);
        }
        auto & layer = layers[matrix.layer];
        if (!layer.matrices.empty() && matrices[layer.matrices[0]].n_expert != matrix.n_expert) {
            throw std::invalid_argument(matrix.name + ": not as many experts as its layer has");
        }
        matrix.part = (int) layer.matrices.size();
        matrix.part_at = layer.slot_bytes;
        layer.matrices.push_back(i);
        layer.unit_bytes += matrix.slice_bytes;
        // The pages that hold a slice: as many for all experts where slices are whole pages.
        const uint64_t pages = matrix.slice_bytes % expert_page == 0
                                   ? matrix.end_page(0) - matrix.first_page(0)
                                   : round_up(matrix.slice_bytes + expert_page - 1);
        layer.slot_bytes += pages;
        n_expert = std::max(n_expert, matrix.n_expert);
        max_parts = std::max(max_parts, (int) layer.matrices.size());
        total_bytes += matrix.slice_bytes * (uint64_t) matrix.n_expert;
    }

    std::map<uint64_t, int> sizes;
    for (auto & layer : layers) {
        if (!layer.matrices.empty()) {
            sizes[layer.slot_bytes] += matrices[layer.matrices[0]].n_expert;
        }
    }
    // Few classes, or each would hold too little: sizes within a sixteenth of a larger one join it.
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
        if (class_slot_bytes.empty() ||
            size->first < class_slot_bytes.back() - class_slot_bytes.back() / 16) {
            class_slot_bytes.push_back(size->first);
            class_units.push_back(0);
        }
        class_units.back() += size->second;
    }
    for (auto & layer : layers) {
        while (layer.size_class + 1 < (int) class_slot_bytes.size() &&
               class_slot_bytes[layer.size_class + 1] >= layer.slot_bytes) {
            layer.size_class++;
        }
    }
}

int expert_layout::next_layer(int layer) const {
    for (int next = layer + 1; next < (int) layers.size(); next++) {
        if (!layers[next].matrices.empty()) {
            return next;
        }
    }
    return -1;
}

std::vector<int> expert_layout::slots_for(uint64_t budget_bytes) const {
    uint64_t all = 0;
    for (size_t i = 0; i < class_units.size(); i++) {
        all += class_slot_bytes[i] * (uint64_t) class_units[i];
    }
    std::vector<int> slots;
    for (size_t i = 0; i < class_units.size(); i++) {
        const double share = all > 0 ? (double) budget_bytes / (double) all : 0;
        const int fit = share >= 1 ? class_units[i] : (int) (share * class_units[i]);
        slots.push_back(std::max(1, fit));
    }
    return slots;
}

} // namespace llama_ai
