// Hash and file format, byte by byte.

#include "check.h"
#include "kv_format.h"

#include <cstring>
#include <string>
#include <utility>

using namespace llama_ai;

// The checksum of sections, straight from its description in native/README.md.
static uint64_t sum_of(const std::vector<uint8_t> & data) {
    const uint64_t p[5] = {0x9E3779B185EBCA87ull, 0xC2B2AE3D27D4EB4Full, 0x165667B19E3779F9ull,
                           0x85EBCA77C2B2AE63ull, 0x27D4EB2F165667C5ull};
    const uint64_t keys[8] = {p[0], p[1], p[2], p[3], p[4], p[0] ^ p[1], p[1] ^ p[2], p[2] ^ p[3]};
    uint64_t lanes[8] = {p[0], p[1], p[2], p[3], p[4], ~p[0], ~p[1], ~p[2]};
    const size_t whole = data.size() / 64 * 64;
    for (size_t at = 0; at < whole; at += 8) {
        uint64_t word;
        std::memcpy(&word, &data[at], 8);
        const size_t lane = at / 8 % 8;
        const uint64_t mixed = word ^ keys[lane];
        lanes[lane] += (mixed % (1ull << 32)) * (mixed >> 32);
        lanes[lane ^ 1] += word;
        if (at % 1024 == 1016) {
            for (size_t i = 0; i < 8; i++) {
                lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ keys[7 - i]) * 2654435761ull;
            }
        }
    }
    return xxh64(lanes, 64, xxh64(data.data() + whole, data.size() - whole, data.size()));
}

static void checks_sections() {
    std::vector<uint8_t> data;
    for (const size_t size : {0, 1, 63, 64, 65, 1024, 1100, 5000}) {
        data.resize(size);
        for (size_t i = 0; i < size; i++) {
            data[i] = (uint8_t) (i * 37 + i / 251);
        }
        const uint64_t sum = stripe_sum(data.data(), size);
        CHECK(sum == sum_of(data));
        for (size_t bit = 0; bit < size * 8; bit++) { // no bit changes unnoticed
            data[bit / 8] ^= (uint8_t) (1 << (bit % 8));
            CHECK(stripe_sum(data.data(), size) != sum);
            data[bit / 8] ^= (uint8_t) (1 << (bit % 8));
        }
    }
    // Zeros are data as well, and blocks have an order.
    data.assign(3 << 20, 0);
    CHECK(stripe_sum(data.data(), 64) != stripe_sum(data.data(), 128));
    const uint64_t zeros = kv_checksum(data.data(), data.size());
    CHECK(zeros != kv_checksum(data.data(), data.size() - 1));
    data[5] = 1;
    const uint64_t first = kv_checksum(data.data(), data.size());
    std::swap(data[5], data[kv_checksum_bytes + 5]);
    CHECK(kv_checksum(data.data(), data.size()) != first && first != zeros);
    CHECK(kv_checksum(data.data(), 100) == kv_checksum_of_blocks({stripe_sum(data.data(), 100)}));
}

int main() {
    checks_sections();
    // Published test vectors of XXH64.
    CHECK(xxh64("", 0) == 0xEF46DB3751D8E999ull);
    CHECK(xxh64("a", 1) == 0xD24EC4F1A98C6E5Bull);
    CHECK(xxh64("abc", 3) == 0x44BC2CF5AD770999ull);
    const std::string line = "Nobody inspects the spammish repetition";
    CHECK(xxh64(line.data(), line.size()) == 0xFBCEA83C8A378BF1ull);

    std::vector<int32_t> tokens(1000);
    for (size_t i = 0; i < tokens.size(); i++) {
        tokens[i] = (int32_t) i * 7;
    }
    const kv_key model = {1, 2};
    const auto keys = kv_block_keys(model, 0, tokens.data(), tokens.size());
    CHECK(keys.size() == 4);
    // A key stands for everything before it, the model and the namespace included.
    CHECK(keys[1] != kv_block_keys({1, 3}, 0, tokens.data(), 256)[1]);
    CHECK(keys[1] != kv_block_keys(model, 1, tokens.data(), 256)[1]);
    auto other = tokens;
    other[0]++;
    CHECK(keys[3] != kv_block_keys(model, 0, other.data(), other.size())[3]);
    other = tokens;
    other[999]++; // in no whole block
    CHECK(keys[3] == kv_block_keys(model, 0, other.data(), other.size())[3]);

    kv_header header;
    header.fingerprint = model;
    header.space = 5;
    header.kind = kv_kind::segment;
    header.flags = kv_flag_system;
    header.begin = 300;
    header.end = 1000;
    header.created_s = 77;
    header.model = std::string(100, 'm');
    header.sections.resize(2);
    header.sections[0].size = 5000;
    header.sections[0].checksum = 11;
    header.sections[1].type = kv_section_type::draft;
    header.sections[1].size = 1;
    kv_set_keys(header, keys);
    CHECK(header.start_key == keys[1] && header.next_key == keys[2]);
    const auto bytes = kv_encode(header, tokens.data());
    CHECK(bytes.size() == 8192); // 512 + 4000, aligned
    CHECK(header.sections[0].offset == 8192 && header.sections[1].offset == 8192 + 8192);
    CHECK(header.file_bytes == 8192 + 8192 + 4096);

    kv_header read;
    CHECK(kv_decode(bytes.data(), read));
    CHECK(read.fingerprint == model && read.space == 5 && read.kind == kv_kind::segment);
    CHECK(read.flags == kv_flag_system && read.begin == 300 && read.end == 1000);
    CHECK(read.created_s == 77 && read.model == std::string(63, 'm'));
    CHECK(read.start_key == keys[1] && read.next_key == keys[2]);
    CHECK(read.file_bytes == header.file_bytes && read.sections.size() == 2);
    CHECK(read.sections[0].checksum == 11 && read.sections[1].type == kv_section_type::draft);
    CHECK(read.tokens_checksum == xxh64(tokens.data(), 4000));

    // No bit of the fixed part can change unnoticed.
    for (size_t bit = 0; bit < kv_fixed_bytes * 8; bit++) {
        auto damaged = bytes;
        damaged[bit / 8] ^= (uint8_t) (1 << (bit % 8));
        CHECK(!kv_decode(damaged.data(), read));
    }
    // Nor do right checksums make impossible sizes right.
    for (const size_t at : {56, 60, 112, 184 + 8, 184 + 16, 12}) {
        auto forged = bytes;
        const uint32_t huge = 0x7fffffff;
        std::memcpy(forged.data() + at, &huge, sizeof(huge));
        std::memset(forged.data() + 16, 0, 8);
        const uint64_t checksum = xxh64(forged.data(), kv_fixed_bytes);
        std::memcpy(forged.data() + 16, &checksum, 8);
        CHECK(!kv_decode(forged.data(), read));
    }
    // A file's name tells apart what differs.
    const auto name = kv_file_name(header, tokens.data());
    for (int what = 0; what < 4; what++) {
        auto changed = header;
        auto changed_tokens = tokens;
        changed.begin += what == 0;
        changed.space += what == 1;
        changed.kind = what == 2 ? kv_kind::partial : changed.kind;
        changed_tokens[999] += what == 3;
        CHECK(kv_file_name(changed, changed_tokens.data()) != name);
    }
    return 0;
}
