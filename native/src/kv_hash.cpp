#include "kv_hash.h"

#include <cstring>

namespace llama_ai {

static const uint64_t prime1 = 0x9E3779B185EBCA87ull;
static const uint64_t prime2 = 0xC2B2AE3D27D4EB4Full;
static const uint64_t prime3 = 0x165667B19E3779F9ull;
static const uint64_t prime4 = 0x85EBCA77C2B2AE63ull;
static const uint64_t prime5 = 0x27D4EB2F165667C5ull;

static uint64_t rotate(uint64_t value, int bits) {
    return (value << bits) | (value >> (64 - bits));
}

// The specification reads little endian, and so do all machines that we build for.
template <typename T>
static T load(const uint8_t * from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

static uint64_t step(uint64_t lane, uint64_t input) {
    return rotate(lane + input * prime2, 31) * prime1;
}

static uint64_t merge(uint64_t hash, uint64_t lane) {
    return (hash ^ step(0, lane)) * prime1 + prime4;
}

uint64_t xxh64(const void * data, size_t size, uint64_t seed) {
    const auto * at = static_cast<const uint8_t *>(data);
    const uint8_t * const end = at + size;
    uint64_t hash = seed + prime5;
    if (size >= 32) {
        uint64_t a = seed + prime1 + prime2;
        uint64_t b = seed + prime2;
        uint64_t c = seed;
        uint64_t d = seed - prime1;
        for (; end - at >= 32; at += 32) {
            a = step(a, load<uint64_t>(at));
            b = step(b, load<uint64_t>(at + 8));
            c = step(c, load<uint64_t>(at + 16));
            d = step(d, load<uint64_t>(at + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash += size;
    for (; end - at >= 8; at += 8) {
        hash = rotate(hash ^ step(0, load<uint64_t>(at)), 27) * prime1 + prime4;
    }
    if (end - at >= 4) {
        hash = rotate(hash ^ (load<uint32_t>(at) * prime1), 23) * prime2 + prime3;
        at += 4;
    }
    for (; at < end; at++) {
        hash = rotate(hash ^ (*at * prime5), 11) * prime1;
    }
    hash = (hash ^ (hash >> 33)) * prime2;
    hash = (hash ^ (hash >> 29)) * prime3;
    return hash ^ (hash >> 32);
}

// Compiled for several processors where the loader can choose among them: two to three times as
// fast with wide registers.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void add_stripes(uint64_t * lanes, const uint8_t * at, size_t stripes) {
    static const uint64_t keys[8] = {prime1, prime2,          prime3,          prime4,
                                     prime5, prime1 ^ prime2, prime2 ^ prime3, prime3 ^ prime4};
    uint64_t sums[8];
    std::memcpy(sums, lanes, sizeof(sums));
    for (size_t stripe = 0; stripe < stripes; stripe++, at += sizeof(sums)) {
        uint64_t words[8];
        std::memcpy(words, at, sizeof(words));
        for (int i = 0; i < 8; i++) {
            const uint64_t mixed = words[i] ^ keys[i];
            sums[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32) + words[i ^ 1];
        }
        if (stripe % 16 == 15) {
            for (int i = 0; i < 8; i++) {
                sums[i] = (sums[i] ^ (sums[i] >> 47) ^ keys[7 - i]) * 0x9E3779B1u;
            }
        }
    }
    std::memcpy(lanes, sums, sizeof(sums));
}

uint64_t stripe_sum(const void * data, size_t size) {
    const auto * at = static_cast<const uint8_t *>(data);
    uint64_t lanes[8] = {prime1, prime2, prime3, prime4, prime5, ~prime1, ~prime2, ~prime3};
    const size_t stripes = size / sizeof(lanes);
    add_stripes(lanes, at, stripes);
    const size_t rest = stripes * sizeof(lanes);
    return xxh64(lanes, sizeof(lanes), xxh64(at + rest, size - rest, size));
}

kv_key chain(const kv_key & before, const void * data, size_t size) {
    return {xxh64(data, size, before.low), xxh64(data, size, before.high ^ prime3)};
}

} // namespace llama_ai
