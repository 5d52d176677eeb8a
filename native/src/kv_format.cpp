#include "kv_format.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace llama_ai {

static const char magic[8] = {'l', 'l', 'a', 'm', 'a', 'i', 'K', 'V'};

// Where the fixed part keeps what. All numbers are little endian.
enum offset : size_t {
    at_magic = 0,
    at_version = 8,
    at_sections = 12,
    at_checksum = 16, // of the fixed part with this field zero
    at_fingerprint = 24,
    at_space = 40,
    at_kind = 48,
    at_flags = 52,
    at_begin = 56,
    at_end = 60,
    at_created = 64,
    at_start_key = 72,
    at_next_key = 88,
    at_tokens_checksum = 104,
    at_file_bytes = 112,
    at_model = 120,   // 64 bytes, ends with a zero
    at_section = 184, // 6 times 32 bytes: type, zero, offset, size, checksum
    at_first_key = at_section + 32 * kv_max_sections,
};
static_assert(at_first_key + sizeof(kv_key) <= kv_fixed_bytes, "the fixed part is too small");

template <typename T>
static void put(uint8_t * bytes, size_t at, T value) {
    std::memcpy(bytes + at, &value, sizeof(value));
}

template <typename T>
static T get(const uint8_t * bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes + at, sizeof(value));
    return value;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + kv_align_bytes - 1) / kv_align_bytes * kv_align_bytes;
}

std::vector<kv_key> kv_block_keys(const kv_key & fingerprint, uint64_t space,
                                  const int32_t * tokens, size_t count) {
    std::vector<kv_key> keys;
    keys.reserve(count / kv_block_tokens + 1);
    keys.push_back(chain(fingerprint, &space, sizeof(space)));
    for (size_t i = 0; i + kv_block_tokens <= count; i += kv_block_tokens) {
        keys.push_back(chain(keys.back(), tokens + i, kv_block_tokens * sizeof(int32_t)));
    }
    return keys;
}

void kv_set_keys(kv_header & header, const std::vector<kv_key> & keys) {
    const size_t block = (size_t) header.begin / kv_block_tokens;
    header.start_key = keys.at(block);
    header.next_key = (size_t) header.end / kv_block_tokens > block ? keys.at(block + 1) : kv_key();
    header.first_key = header.end >= kv_block_tokens ? keys.at(1) : kv_key();
}

size_t kv_head_bytes(const kv_header & header) {
    return aligned(kv_fixed_bytes + header.tokens_bytes());
}

std::vector<uint8_t> kv_encode(kv_header & header, const int32_t * tokens) {
    std::vector<uint8_t> bytes(kv_head_bytes(header));
    header.tokens_checksum = xxh64(tokens, header.tokens_bytes());
    header.file_bytes = bytes.size();
    for (auto & section : header.sections) {
        section.offset = header.file_bytes;
        header.file_bytes += aligned(section.size);
    }

    uint8_t * out = bytes.data();
    std::memcpy(out + at_magic, magic, sizeof(magic));
    put<uint32_t>(out, at_version, kv_format_version);
    put<uint32_t>(out, at_sections, (uint32_t) header.sections.size());
    put(out, at_fingerprint, header.fingerprint);
    put(out, at_space, header.space);
    put(out, at_kind, (uint32_t) header.kind);
    put(out, at_flags, header.flags);
    put(out, at_begin, header.begin);
    put(out, at_end, header.end);
    put(out, at_created, header.created_s);
    put(out, at_start_key, header.start_key);
    put(out, at_next_key, header.next_key);
    put(out, at_first_key, header.first_key);
    put(out, at_tokens_checksum, header.tokens_checksum);
    put(out, at_file_bytes, header.file_bytes);
    std::memcpy(out + at_model, header.model.data(), std::min<size_t>(header.model.size(), 63));
    size_t at = at_section;
    for (const auto & section : header.sections) {
        put(out, at, (uint32_t) section.type);
        put(out, at + 8, section.offset);
        put(out, at + 16, section.size);
        put(out, at + 24, section.checksum);
        at += 32;
    }
    put(out, at_checksum, xxh64(out, kv_fixed_bytes));
    std::memcpy(out + kv_fixed_bytes, tokens, header.tokens_bytes());
    return bytes;
}

bool kv_decode(const uint8_t * bytes, kv_header & header) {
    if (std::memcmp(bytes + at_magic, magic, sizeof(magic)) != 0 ||
        get<uint32_t>(bytes, at_version) != kv_format_version) {
        return false;
    }
    uint8_t copy[kv_fixed_bytes];
    std::memcpy(copy, bytes, kv_fixed_bytes);
    put<uint64_t>(copy, at_checksum, 0);
    if (get<uint64_t>(bytes, at_checksum) != xxh64(copy, kv_fixed_bytes)) {
        return false;
    }

    header.fingerprint = get<kv_key>(bytes, at_fingerprint);
    header.space = get<uint64_t>(bytes, at_space);
    const auto kind = get<uint32_t>(bytes, at_kind);
    header.flags = get<uint32_t>(bytes, at_flags);
    header.begin = get<int32_t>(bytes, at_begin);
    header.end = get<int32_t>(bytes, at_end);
    header.created_s = get<int64_t>(bytes, at_created);
    header.start_key = get<kv_key>(bytes, at_start_key);
    header.next_key = get<kv_key>(bytes, at_next_key);
    header.first_key = get<kv_key>(bytes, at_first_key);
    header.tokens_checksum = get<uint64_t>(bytes, at_tokens_checksum);
    header.file_bytes = get<uint64_t>(bytes, at_file_bytes);
    const char * model = reinterpret_cast<const char *>(bytes) + at_model;
    header.model.assign(model, strnlen(model, 63));
    const auto sections = get<uint32_t>(bytes, at_sections);
    if ((kind != 1 && kind != 2) || header.begin < 0 || header.end <= 0 ||
        header.begin > header.end || sections > (uint32_t) kv_max_sections) {
        return false;
    }
    header.kind = (kv_kind) kind;

    // A checksum proves only that somebody meant these bytes: every size is checked as well.
    uint64_t expected = kv_head_bytes(header);
    header.sections.clear();
    for (uint32_t i = 0; i < sections; i++) {
        const size_t at = at_section + 32 * i;
        kv_section section;
        section.type = (kv_section_type) get<uint32_t>(bytes, at);
        section.offset = get<uint64_t>(bytes, at + 8);
        section.size = get<uint64_t>(bytes, at + 16);
        section.checksum = get<uint64_t>(bytes, at + 24);
        if (section.offset != expected || section.size > (uint64_t) 1 << 46) {
            return false;
        }
        expected += aligned(section.size);
        header.sections.push_back(section);
    }
    return expected == header.file_bytes;
}

uint64_t kv_checksum_of_blocks(const std::vector<uint64_t> & blocks) {
    return xxh64(blocks.data(), blocks.size() * sizeof(uint64_t));
}

uint64_t kv_checksum(const uint8_t * data, uint64_t size) {
    std::vector<uint64_t> blocks;
    for (uint64_t at = 0; at < size; at += kv_checksum_bytes) {
        blocks.push_back(stripe_sum(data + at, std::min<uint64_t>(kv_checksum_bytes, size - at)));
    }
    return kv_checksum_of_blocks(blocks);
}

std::string kv_file_name(const kv_header & header, const int32_t * tokens) {
    // 64 bits of fingerprint and namespace, so that a model's files lie together, and 128 of what
    // is inside.
    const kv_key owner = chain(header.fingerprint, &header.space, sizeof(header.space));
    const kv_key content =
        chain({owner.high, (uint64_t) header.begin}, tokens, header.tokens_bytes());
    char name[128];
    std::snprintf(name, sizeof(name), "%016" PRIx64 "-%s%07d-%016" PRIx64 "%016" PRIx64 ".kv",
                  owner.low, header.kind == kv_kind::segment ? "s" : "p", (int) header.end,
                  content.low, content.high);
    return name;
}

} // namespace llama_ai
