// The hashes of the KV store. XXH64 for headers, tokens and names, written from its public
// specification (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Fast on every CPU, and
// not meant to resist an attacker: what is found by a hash is compared token by token before it is
// used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llama_ai {

uint64_t xxh64(const void * data, size_t size, uint64_t seed = 0);

// For much data, against damage only: as fast as memory. Of 64 bytes at a time, each 64-bit word,
// mixed with a key, adds the product of its halves to a sum of its own and itself to its
// neighbour's, so that no change of one word can go unnoticed.
uint64_t stripe_sum(const void * data, size_t size);

// 128 bits, so that chance collisions do not happen.
struct kv_key {
    uint64_t low = 0;
    uint64_t high = 0;

    bool operator==(const kv_key & other) const {
        return low == other.low && high == other.high;
    }
    bool operator!=(const kv_key & other) const {
        return !(*this == other);
    }
    bool empty() const {
        return low == 0 && high == 0;
    }
};

struct kv_key_hash {
    size_t operator()(const kv_key & key) const {
        return (size_t) key.low;
    }
};

// The key of what `before` stands for, followed by `data`.
kv_key chain(const kv_key & before, const void * data, size_t size);

} // namespace llama_ai
