#include "kv_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace llama_ai {

kv_read kv_file_reader::open(const std::string & path, const kv_header & expected,
                             const std::function<uint8_t *(size_t)> & allocate) {
    file = file_handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat info;
    if (!file || fstat(file.get(), &info) != 0) {
        return errno == ENOENT ? kv_read::missing : kv_read::failed;
    }
    const uint64_t size = expected.file_bytes;
    if ((uint64_t) info.st_size != size) {
        return kv_read::damaged;
    }
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    bytes = allocate(size);
    if (!bytes) {
        return kv_read::failed;
    }
    const size_t head = kv_head_bytes(expected);
    if (head > size || !read_all(file.get(), bytes, head, 0)) {
        return kv_read::failed;
    }
    if (!kv_decode(bytes, read_header) || read_header.file_bytes != size ||
        !(read_header.fingerprint == expected.fingerprint) || read_header.space != expected.space ||
        read_header.kind != expected.kind || read_header.begin != expected.begin ||
        read_header.end != expected.end ||
        xxh64(bytes + kv_fixed_bytes, read_header.tokens_bytes()) != read_header.tokens_checksum) {
        return kv_read::damaged;
    }
    for (const auto & section : read_header.sections) {
        for (uint64_t at = 0; at < section.size; at += kv_checksum_bytes) {
            blocks.push_back(
                {section.offset + at, std::min<uint64_t>(kv_checksum_bytes, section.size - at), 0});
        }
    }
    return kv_read::ok;
}

void kv_file_reader::read_block(size_t index) {
    auto & wanted = blocks[index];
    if (!read_all(file.get(), bytes + wanted.offset, wanted.size, wanted.offset)) {
        failed = true;
        return;
    }
    wanted.checksum = stripe_sum(bytes + wanted.offset, wanted.size);
}

kv_read kv_file_reader::finish() const {
    if (failed) {
        return kv_read::failed;
    }
    auto next = blocks.begin();
    for (const auto & section : read_header.sections) {
        std::vector<uint64_t> sums;
        for (; next != blocks.end() && next->offset < section.offset + section.size; ++next) {
            sums.push_back(next->checksum);
        }
        if (kv_checksum_of_blocks(sums) != section.checksum) {
            return kv_read::damaged;
        }
    }
    return kv_read::ok;
}

} // namespace llama_ai
