#include "kv_posix.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace llama_ai {

static const size_t chunk_bytes = 8 << 20;

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t time_ns(const timespec & time) {
    return (int64_t) time.tv_sec * 1000000000 + time.tv_nsec;
}

bool read_all(int file, void * to, size_t size, uint64_t offset) {
    auto * at = static_cast<uint8_t *>(to);
    while (size > 0) {
        const ssize_t n = pread(file, at, std::min(size, chunk_bytes), (off_t) offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        offset += (uint64_t) n;
        size -= (size_t) n;
    }
    return true;
}

void write_all(int file, const void * from, size_t size, uint64_t offset) {
    const auto * at = static_cast<const uint8_t *>(from);
    while (size > 0) {
        const ssize_t n = pwrite(file, at, std::min(size, chunk_bytes), (off_t) offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            throw std::system_error(n < 0 ? errno : EIO, std::generic_category(), "write");
        }
        at += n;
        offset += (uint64_t) n;
        size -= (size_t) n;
    }
}

} // namespace llama_ai
