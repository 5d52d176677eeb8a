// Files by descriptor, for the KV store.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <utility>

namespace llama_ai {

class file_handle {
public:
    file_handle() = default;
    explicit file_handle(int descriptor) : descriptor(descriptor) {}
    ~file_handle() {
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    file_handle(file_handle && other) noexcept : descriptor(other.descriptor) {
        other.descriptor = -1;
    }
    file_handle & operator=(file_handle && other) noexcept {
        std::swap(descriptor, other.descriptor); // the other one closes what was ours
        return *this;
    }
    file_handle(const file_handle &) = delete;
    file_handle & operator=(const file_handle &) = delete;

    explicit operator bool() const {
        return descriptor >= 0;
    }
    int get() const {
        return descriptor;
    }

private:
    int descriptor = -1;
};

// Wall-clock time, nanoseconds since 1970, as files have it.
int64_t now_ns();
int64_t time_ns(const timespec & time);

// False at a read error or the file's end.
bool read_all(int file, void * to, size_t size, uint64_t offset);

// Throws std::system_error.
void write_all(int file, const void * from, size_t size, uint64_t offset);

// The same past the page cache, which costs the processor a tenth and leaves memory to others, for
// as much of it as the file system allows. `offset` is a multiple of 4096. Of one file, one thread.
void write_past_cache(int file, const void * from, size_t size, uint64_t offset);

} // namespace llama_ai
