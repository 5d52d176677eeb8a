#include "check.h"
#include "expert_files.h"
#include "expert_layout.h"
#include "expert_pool.h"

#include <stdexcept>

using namespace llama_ai;

static expert_matrix matrix(const std::string & name, int layer, int n_expert, uint64_t offset,
                            uint64_t slice_bytes) {
    expert_matrix result;
    result.name = name;
    result.layer = layer;
    result.n_expert = n_expert;
    result.offset = offset;
    result.slice_bytes = slice_bytes;
    return result;
}

static void names() {
    bool last = true;
    CHECK(expert_tensor_layer("blk.0.ffn_gate_exps.weight", &last) == 0 && !last);
    CHECK(expert_tensor_layer("blk.17.ffn_down_exps.weight", &last) == 17 && last);
    CHECK(expert_tensor_layer("blk.3.ffn_gate_up_exps.weight") == 3);
    CHECK(expert_tensor_layer("blk.3.ffn_up_exps.weight") == 3);
    for (const char * other :
         {"blk.3.ffn_up_exps.bias", "blk.3.ffn_up_shexp.weight", "blk.3.ffn_up_exps.weight2",
          "blk.ffn_up_exps.weight", "blk.3ffn_up_exps.weight", "blk.3", "blk.3.",
          "3.ffn_up_exps.weight", "blk.99999999999999999999.ffn_up_exps.weight", ""}) {
        CHECK(expert_tensor_layer(other) == -1);
    }
}

static void units() {
    // Layer 1 has none; layer 2 has a larger down; slices that begin anywhere.
    const expert_layout layout({
        matrix("blk.0.ffn_down_exps.weight", 0, 4, 100, 10000),
        matrix("blk.0.ffn_gate_up_exps.weight", 0, 4, 50000, 8192),
        matrix("blk.2.ffn_down_exps.weight", 2, 6, 100000, 40960),
        matrix("blk.2.ffn_gate_up_exps.weight", 2, 6, 4096 * 100, 8192),
    });
    CHECK(layout.n_expert == 6 && layout.max_parts == 2 && layout.layers.size() == 3);
    CHECK(layout.n_units() == 18 && layout.unit(2, 5) == 17 && layout.layer_of(17) == 2 &&
          layout.expert_of(17) == 5);
    CHECK(layout.n_experts_of(0) == 4 && layout.n_experts_of(1) == 0);
    CHECK(layout.next_layer(0) == 2 && layout.next_layer(2) == -1);
    CHECK(layout.total_bytes == 4 * 18192 + 6 * 49152);

    // Gate and up come before down in a unit, and the parts of a slot do not overlap.
    for (const auto & layer : layout.layers) {
        uint64_t end = 0;
        for (size_t i = 0; i < layer.matrices.size(); i++) {
            const auto & one = layout.matrices[layer.matrices[i]];
            CHECK(one.part == (int) i && one.part_at == end);
            CHECK((one.name.find("down") != std::string::npos) == (i == 1));
            for (int expert = 0; expert < one.n_expert; expert++) {
                CHECK(one.first_page(expert) % expert_page == 0);
                CHECK(one.end_page(expert) % expert_page == 0);
                CHECK(one.first_page(expert) <= one.slice_offset(expert));
                CHECK(one.end_page(expert) >= one.slice_offset(expert) + one.slice_bytes);
                const uint64_t bytes = one.end_page(expert) - one.first_page(expert);
                CHECK(one.part_at + bytes <= layer.slot_bytes);
                end = std::max(end, one.part_at + bytes);
            }
        }
    }

    // Two sizes; every budget buys at least one slot of each and at most all.
    CHECK(layout.class_slot_bytes.size() == 2);
    CHECK(layout.layers[0].size_class == 1 && layout.layers[2].size_class == 0);
    CHECK((layout.class_units == std::vector<int>{6, 4}));
    CHECK((layout.slots_for(1) == std::vector<int>{1, 1}));
    CHECK((layout.slots_for(1 << 30) == std::vector<int>{6, 4}));
    for (uint64_t budget = 70000; budget < 1000000; budget += 12345) {
        const auto slots = layout.slots_for(budget);
        CHECK(layout.class_slot_bytes[0] * slots[0] + layout.class_slot_bytes[1] * slots[1] <=
              std::max<uint64_t>(budget, layout.class_slot_bytes[0] + layout.class_slot_bytes[1]));
    }

    // Sizes that hardly differ share a class.
    const expert_layout close({
        matrix("blk.0.ffn_down_exps.weight", 0, 4, 0, 100 * 4096),
        matrix("blk.1.ffn_down_exps.weight", 1, 4, 0, 98 * 4096),
    });
    CHECK(close.class_slot_bytes.size() == 1 && close.class_units[0] == 8);
}

static void bad() {
    for (const auto & matrices : {
             std::vector<expert_matrix>{matrix("x", 0, 0, 0, 1)},
             std::vector<expert_matrix>{matrix("x", -1, 2, 0, 1)},
             std::vector<expert_matrix>{matrix("x", 0, 2, 0, 0)},
             std::vector<expert_matrix>{matrix("x", 0, 2, 0, 1), matrix("y", 0, 3, 0, 1)},
         }) {
        bool thrown = false;
        try {
            const expert_layout layout(matrices);
        } catch (const std::invalid_argument &) {
            thrown = true;
        }
        CHECK(thrown);
    }
}

static void pool() {
    expert_pool pool({8192, 4 << 20}, {3, 2});
    CHECK(pool.bytes() == 3 * 8192 + (8 << 20));
    CHECK((uintptr_t) pool.address(1, 0) % (2 << 20) == 0); // a huge page
    CHECK(pool.address(0, 2) - pool.address(0, 1) == 8192);
    CHECK(pool.take(0) == 0 && pool.take(0) == 1 && pool.take(0) == 2 && pool.take(0) == -1);
    for (int i = 0; i < 2; i++) {
        CHECK(pool.take(1) == i);
        pool.address(1, i)[0] = pool.address(1, i)[(4 << 20) - 1] = 1;
    }
    pool.give_back(1, 1);
    pool.shrink(1, 1);
    CHECK(pool.take(1) == -1 && pool.n_slots(1) == 1);
    CHECK(pool.address(1, 0)[(4 << 20) - 1] == 1);
    pool.give_back(0, 1);
    CHECK(pool.take(0) == 1);
}

int main() {
    names();
    units();
    bad();
    pool();
    return 0;
}
