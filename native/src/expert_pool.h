// The memory that expert units live in: slots of a few sizes in one anonymous mapping each. Not
// synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llama_ai {

class expert_pool {
public:
    // Reserves the address space; memory is taken when a slot is first written. Slot sizes are
    // multiples of the page. Throws std::bad_alloc.
    expert_pool(const std::vector<uint64_t> & slot_bytes, const std::vector<int> & n_slots);
    ~expert_pool();
    expert_pool(const expert_pool &) = delete;
    expert_pool & operator=(const expert_pool &) = delete;

    // A free slot, or -1.
    int take(int size_class);
    void give_back(int size_class, int slot);

    char * address(int size_class, int slot) const {
        return classes[size_class].base + (size_t) slot * classes[size_class].slot_bytes;
    }
    int n_slots(int size_class) const {
        return classes[size_class].n_slots;
    }
    int n_classes() const {
        return (int) classes.size();
    }
    uint64_t bytes() const;

    // Fewer slots from now on. Those at and above the new number must have been given back; their
    // memory is freed.
    void shrink(int size_class, int n_slots);

private:
    void release();

    struct size_class {
        char * area = nullptr; // what was mapped
        char * base = nullptr; // where the slots begin
        size_t area_bytes = 0, slot_bytes = 0;
        int n_slots = 0;
        std::vector<int> free;
    };
    std::vector<size_class> classes;
};

} // namespace llama_ai
