// Hash and file format, byte by byte.

#include "check.h"
#include "kv_format.h"

#include <cstring>
#include <string>

using namespace llama_ai;

int main() {
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
