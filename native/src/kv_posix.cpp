#include "kv_posix.h"

#include <fcntl.h>

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

void write_past_cache(int file, const void * from, size_t size, uint64_t offset) {
    const size_t page = 4096;
    size_t done = 0;
#ifdef O_DIRECT
    const int flags = fcntl(file, F_GETFL);
    if (reinterpret_cast<uintptr_t>(from) % page == 0 && size >= page && flags >= 0 &&
        fcntl(file, F_SETFL, flags | O_DIRECT) == 0) {
        const size_t whole = size / page * page;
        while (done < whole) {
            const ssize_t n = pwrite(file, static_cast<const uint8_t *>(from) + done,
                                     std::min(whole - done, chunk_bytes), (off_t) (offset + done));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            // What a file system does not take in this way, or took in part, goes the usual way,
            // which also says what is wrong.
            if (n <= 0 || n % (ssize_t) page != 0) {
                break;
            }
            done += (size_t) n;
        }
        fcntl(file, F_SETFL, flags);
    }
#endif
    write_all(file, static_cast<const uint8_t *>(from) + done, size - done, offset + done);
}

} // namespace llama_ai
