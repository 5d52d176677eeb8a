// The model's files as the expert cache reads them: past the page cache where the file system lets
// us, out of it where the bytes are there already.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama_ai {

// Reads begin and end at multiples of this in the file and in memory.
const uint64_t expert_page = 4096;

// What went wrong with a read; `code` is an errno value, 0 for "nothing did".
struct expert_read_error {
    int code = 0;
    std::string text; // file, offset and cause, one line
};

// One open file. Reading is thread-safe.
class expert_file {
public:
    // `fd` stays the caller's; the file is opened again. Throws std::system_error.
    explicit expert_file(int fd);
    ~expert_file();
    expert_file(const expert_file &) = delete;
    expert_file & operator=(const expert_file &) = delete;

    // Reads [offset, offset + bytes) to `to`. `offset` and `to` are multiples of expert_page, and
    // so is `bytes`; the range may end behind the end of the file by less than a page. Of the range
    // at least `must` bytes have to be there. False: `error` says why.
    bool read(char * to, uint64_t offset, uint64_t bytes, uint64_t must, expert_read_error & error);

    // The same through the page cache, so that the bytes are there afterwards.
    bool warm(char * scratch, uint64_t offset, uint64_t bytes, uint64_t must,
              expert_read_error & error);

    // Whether all pages of [address, address + bytes), a part of a mapping of this file, are in
    // memory. False when the kernel does not tell us.
    bool in_memory(const char * address, uint64_t bytes) const;

    // Copies what the page cache has instead of reading it: `mapping` is where the file's first
    // byte is mapped.
    void use_page_cache(const char * mapping) {
        base = mapping;
    }

    // Lets the page cache drop the whole pages of [begin, end).
    void forget(uint64_t begin, uint64_t end) const;
    uint64_t bytes() const {
        return size;
    }

    // False: the file is not the one that was opened. It is shorter than it was, or its first
    // bytes or a sample of the rest have changed. Looks at the content only when size or
    // modification time differ from the last look.
    bool unchanged(expert_read_error & error);

    bool same_as(int fd) const;
    bool direct() const {
        return is_direct;
    }
    const std::string & path() const {
        return name;
    }

private:
    bool read_fully(int fd, char * to, uint64_t offset, uint64_t bytes, uint64_t must,
                    expert_read_error & error);
    bool fingerprint(uint64_t & value, expert_read_error & error);
    std::string at(uint64_t offset) const;

    std::string name;
    int buffered = -1, direct_fd = -1;
    std::atomic<bool> is_direct{false};
    bool tells_residency = false;
    const char * base = nullptr;
    uint64_t device = 0, inode = 0, size = 0;
    std::atomic<int64_t> modified_ns{0};
    uint64_t content = 0;
};

} // namespace llama_ai
