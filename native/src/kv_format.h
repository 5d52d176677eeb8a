// The format of one file of the KV store: see "The KV store" in native/README.md.
#pragma once

#include "kv_hash.h"

#include <cstdint>
#include <string>
#include <vector>

namespace llama_ai {

constexpr uint32_t kv_format_version = 2;
constexpr int32_t kv_block_tokens = 256; // keys are made of blocks of so many tokens
constexpr size_t kv_fixed_bytes = 512;   // the fixed part of the header
constexpr size_t kv_align_bytes = 4096;
constexpr int kv_max_sections = 6;
constexpr size_t kv_checksum_bytes = 1 << 20; // a section is checksummed in blocks of this size

enum class kv_kind : uint32_t {
    segment = 1, // attention cells of the positions [begin, end)
    partial = 2, // what cannot be cut by position, as it is after `end` tokens; begin == end
};

enum class kv_section_type : uint32_t {
    target = 1,        // the model's context
    draft = 2,         // the draft model's or MTP context
    speculative = 3,   // what speculation keeps between two batches
    target_places = 4, // where the cells of a sliding window lie: 32-bit numbers, first where the
    draft_places = 5,  // cache looks for room next, then a place per cell
};

constexpr uint32_t kv_flag_system = 1;     // all of it belongs to a system prompt
constexpr uint32_t kv_flag_system_end = 2; // a system prompt ends where this ends

struct kv_section {
    kv_section_type type = kv_section_type::target;
    uint64_t offset = 0; // from the start of the file, a multiple of kv_align_bytes
    uint64_t size = 0;
    uint64_t checksum = 0;
};

struct kv_header {
    kv_key fingerprint; // of everything that makes a state valid
    uint64_t space = 0; // namespace: states of one are never used in another
    kv_kind kind = kv_kind::segment;
    uint32_t flags = 0;
    int32_t begin = 0; // tokens
    int32_t end = 0;   // tokens; the file lists all tokens [0, end)
    int64_t created_s = 0;
    kv_key start_key;  // of the whole blocks before `begin`
    kv_key next_key;   // of one block more; empty when the file does not reach so far
    kv_key first_key;  // of the first block; empty when the file does not reach so far
    std::string model; // for people: at most 63 bytes
    uint64_t tokens_checksum = 0;
    uint64_t file_bytes = 0;
    std::vector<kv_section> sections;

    size_t tokens_bytes() const {
        return (size_t) end * sizeof(int32_t);
    }
};

// `keys[i]` stands for the first i blocks of `tokens`; keys[0] for fingerprint and namespace.
std::vector<kv_key> kv_block_keys(const kv_key & fingerprint, uint64_t space,
                                  const int32_t * tokens, size_t count);

// Sets the three keys from kv_block_keys of (at least) the header's tokens.
void kv_set_keys(kv_header & header, const std::vector<kv_key> & keys);

// Sets the sections' offsets, file_bytes and tokens_checksum, and returns everything that comes
// before the first section: the fixed part, the tokens, zeros. The sections' checksums are part of
// it, so they come first.
std::vector<uint8_t> kv_encode(kv_header & header, const int32_t * tokens);

// The size of that: where the first section begins.
size_t kv_head_bytes(const kv_header & header);

// Decodes the fixed part of a header from kv_fixed_bytes bytes. False when the bytes are not a
// header of this version, damaged, or impossible.
bool kv_decode(const uint8_t * bytes, kv_header & header);

// The checksum of a section: of the checksums of its blocks, so that several threads can work on
// one, each while its block is still in the processor's cache.
uint64_t kv_checksum(const uint8_t * data, uint64_t size);
uint64_t kv_checksum_of_blocks(const std::vector<uint64_t> & blocks);

// A name that says what is in the file; two files of one name hold the same state.
std::string kv_file_name(const kv_header & header, const int32_t * tokens);

} // namespace llama_ai
