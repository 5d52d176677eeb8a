#include "expert_files.h"

#include "kv_hash.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace llama_ai {

static int64_t modification_ns(const struct stat & status) {
#if defined(__APPLE__)
    return (int64_t) status.st_mtimespec.tv_sec * 1000000000 + status.st_mtimespec.tv_nsec;
#else
    return (int64_t) status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec;
#endif
}

static std::string path_of(int fd) {
#if defined(__linux__)
    char path[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = readlink(link.c_str(), path, sizeof(path));
    if (length > 0) {
        return std::string(path, (size_t) length);
    }
#elif defined(F_GETPATH)
    char path[4096];
    if (fcntl(fd, F_GETPATH, path) == 0) {
        return path;
    }
#endif
    return "the model's file";
}

static int open_again(int fd, const std::string & path, int flags) {
#if defined(__linux__)
    (void) path; // it may have been renamed or deleted since
    return open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC | flags);
#else
    (void) fd;
    return open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
#endif
}

expert_file::expert_file(int fd) : name(path_of(fd)) {
    buffered = open_again(fd, name, 0);
    struct stat status = {};
    if (buffered < 0 || fstat(buffered, &status) != 0) {
        const int code = errno;
        if (buffered >= 0) {
            close(buffered);
        }
        throw std::system_error(code, std::generic_category(), name);
    }
    device = (uint64_t) status.st_dev;
    inode = (uint64_t) status.st_ino;
    size = (uint64_t) status.st_size;
    modified_ns = modification_ns(status);
    // The kernel tells others "everything is in memory".
    tells_residency =
        geteuid() == 0 || status.st_uid == geteuid() || access(name.c_str(), W_OK) == 0;
#if defined(POSIX_FADV_RANDOM)
    posix_fadvise(buffered, 0, 0, POSIX_FADV_RANDOM); // what we ask for, and nothing around it
#endif
#if defined(O_DIRECT)
    direct_fd = open_again(fd, name, O_DIRECT);
    is_direct = direct_fd >= 0;
#elif defined(F_NOCACHE)
    direct_fd = open_again(fd, name, 0);
    is_direct = direct_fd >= 0 && fcntl(direct_fd, F_NOCACHE, 1) == 0;
#endif
    expert_read_error error;
    if (!fingerprint(content, error)) {
        const int code = error.code;
        close(buffered);
        if (direct_fd >= 0) {
            close(direct_fd);
        }
        throw std::system_error(code, std::generic_category(), error.text);
    }
}

expert_file::~expert_file() {
    close(buffered);
    if (direct_fd >= 0) {
        close(direct_fd);
    }
}

std::string expert_file::at(uint64_t offset) const {
    return name + " at byte " + std::to_string(offset);
}

bool expert_file::same_as(int fd) const {
    struct stat status = {};
    return fstat(fd, &status) == 0 && (uint64_t) status.st_dev == device &&
           (uint64_t) status.st_ino == inode;
}

bool expert_file::read_fully(int fd, char * to, uint64_t offset, uint64_t bytes, uint64_t must,
                             expert_read_error & error) {
    uint64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, to + done, bytes - done, (off_t) (offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            error.code = errno;
            error.text = "cannot read " + at(offset + done) + ": " + std::strerror(error.code);
            return false;
        }
        if (got == 0) {
            break;
        }
        done += (uint64_t) got;
        if (done >= must && done % expert_page != 0) {
            break; // the file ends inside its last page
        }
    }
    if (done < must) {
        error.code = ENODATA;
        error.text = "cannot read " + at(offset + done) +
                     ": the file has become shorter since the model was loaded";
        return false;
    }
    return true;
}

bool expert_file::read(char * to, uint64_t offset, uint64_t bytes, uint64_t must,
                       expert_read_error & error) {
    const bool cached = base && in_memory(base + offset, must);
    if (is_direct && !cached) {
        if (read_fully(direct_fd, to, offset, bytes, must, error)) {
            return true;
        }
        if (error.code != EINVAL) {
            return false;
        }
        is_direct = false; // the file system took the flag and refuses the reads
        error = {};
    }
    if (!read_fully(buffered, to, offset, must, must, error)) {
        return false;
    }
#if defined(POSIX_FADV_DONTNEED)
    if (!cached) {
        posix_fadvise(buffered, (off_t) offset, (off_t) bytes, POSIX_FADV_DONTNEED);
    }
#endif
    return true;
}

bool expert_file::warm(char * scratch, uint64_t offset, uint64_t, uint64_t must,
                       expert_read_error & error) {
    return read_fully(buffered, scratch, offset, must, must, error);
}

bool expert_file::in_memory(const char * address, uint64_t bytes) const {
    if (!tells_residency) {
        return false;
    }
    static const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t) address / page * page;
    const uintptr_t end = ((uintptr_t) address + bytes + page - 1) / page * page;
    unsigned char pages[512];
    for (uintptr_t at = begin; at < end; at += sizeof(pages) * page) {
        const size_t length = std::min<size_t>(sizeof(pages) * page, end - at);
#if defined(__APPLE__)
        if (mincore((void *) at, length, (char *) pages) != 0) {
#else
        if (mincore((void *) at, length, pages) != 0) {
#endif
            return false;
        }
        for (size_t i = 0; i < length / page; i++) {
            if (!(pages[i] & 1)) {
                return false;
            }
        }
    }
    return true;
}

void expert_file::forget(uint64_t begin, uint64_t end) const {
#if defined(POSIX_FADV_DONTNEED)
    if (begin < end) {
        posix_fadvise(buffered, (off_t) begin, (off_t) (end - begin), POSIX_FADV_DONTNEED);
    }
#endif
}

bool expert_file::fingerprint(uint64_t & value, expert_read_error & error) {
    // The header and the tensor table are at the beginning; of the weights a sample.
    const uint64_t first = std::min<uint64_t>(size, 64 << 10);
    const int n_samples = 64;
    const uint64_t sample = 512;
    std::vector<char> bytes(first + n_samples * sample);
    if (!read_fully(buffered, bytes.data(), 0, first, first, error)) {
        return false;
    }
    for (uint64_t i = 0; i < n_samples && size > sample; i++) {
        const uint64_t offset = (size - sample) / n_samples * i;
        if (!read_fully(buffered, bytes.data() + first + i * sample, offset, sample, sample,
                        error)) {
            return false;
        }
    }
    value = xxh64(bytes.data(), bytes.size());
    return true;
}

bool expert_file::unchanged(expert_read_error & error) {
    struct stat status = {};
    if (fstat(buffered, &status) != 0) {
        error.code = errno;
        error.text = "cannot look at " + name + ": " + std::strerror(error.code);
        return false;
    }
    if ((uint64_t) status.st_size == size && modification_ns(status) == modified_ns) {
        return true;
    }
    if ((uint64_t) status.st_size < size) {
        error.code = ENODATA;
        error.text = name + " has become shorter since the model was loaded (" +
                     std::to_string(status.st_size) + " instead of " + std::to_string(size) +
                     " bytes)";
        return false;
    }
    uint64_t now = 0;
    if (!fingerprint(now, error)) {
        return false;
    }
    if (now != content) {
        error.code = ESTALE;
        error.text = name + " was changed since the model was loaded: restart the server";
        return false;
    }
    modified_ns = modification_ns(status);
    return true;
}

} // namespace llama_ai
