// How files come into the KV store, and out of it.

#include "kv_posix.h"
#include "kv_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <system_error>

namespace llama_ai {

static const size_t token_cache_bytes = 32 << 20;

// A new file that no scan takes for a leftover: it is locked. One that was taken before it was
// locked is made once more.
static file_handle create_locked(const std::string & path) {
    while (true) {
        file_handle file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
        struct stat info;
        if (!file || flock(file.get(), LOCK_EX) != 0 || fstat(file.get(), &info) != 0) {
            throw std::system_error(errno, std::generic_category(), path);
        }
        if (info.st_nlink > 0) {
            return file;
        }
    }
}

kv_tokens kv_store::tokens(const kv_entry_ptr & entry) {
    lock guard(mutex);
    if (entry->tokens) {
        return entry->tokens;
    }
    for (auto it = token_cache.begin(); it != token_cache.end(); ++it) {
        if (it->first == entry->name) {
            token_cache.splice(token_cache.begin(), token_cache, it);
            return token_cache.front().second;
        }
    }
    auto tokens = std::make_shared<std::vector<int32_t>>((size_t) entry->header.end);
    const size_t bytes = entry->header.tokens_bytes();
    file_handle file(::open(path(entry->name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file) {
        forget(entry); // another server dropped it
        return nullptr;
    }
    if (!read_all(file.get(), tokens->data(), bytes, kv_fixed_bytes) ||
        xxh64(tokens->data(), bytes) != entry->header.tokens_checksum) {
        set_aside(entry);
        return nullptr;
    }
    token_cache.emplace_front(entry->name, tokens);
    size_t total = 0;
    for (auto it = token_cache.begin(); it != token_cache.end();) {
        total += it->second->size() * sizeof(int32_t);
        it = total > token_cache_bytes && it != token_cache.begin() ? token_cache.erase(it)
                                                                    : std::next(it);
    }
    return tokens;
}

kv_entry_ptr kv_store::announce(const kv_header & header, kv_tokens tokens) {
    auto entry = std::make_shared<kv_entry>();
    entry->name = kv_file_name(header, tokens->data());
    entry->header = header;
    entry->tokens = std::move(tokens);
    entry->used_ns = now_ns();
    lock guard(mutex);
    if (entries.count(entry->name)) {
        counters.skipped_files++;
        return nullptr;
    }
    insert(entry);
    return entry;
}

void kv_store::abandon(const kv_entry_ptr & entry) {
    lock guard(mutex);
    forget(entry);
}

bool kv_store::write(const kv_entry_ptr & entry, const std::vector<const uint8_t *> & data) {
    kv_header header = entry->header;
    uint64_t payload = 0;
    for (size_t i = 0; i < data.size(); i++) {
        header.sections[i].checksum = kv_checksum(data[i], header.sections[i].size);
        payload += header.sections[i].size;
    }
    header.created_s = (int64_t) time(nullptr);
    const auto head = kv_encode(header, entry->tokens->data());

    std::string temporary;
    {
        lock guard(mutex);
        if (!make_room(header.file_bytes)) {
            forget(entry);
            return false;
        }
        reserved_bytes = header.file_bytes;
        temporary = path(temporary_prefix + writer_name + std::to_string(temporary_count++));
    }
    try {
        const file_handle file = create_locked(temporary);
        write_all(file.get(), head.data(), head.size(), 0);
        for (size_t i = 0; i < data.size(); i++) {
            write_past_cache(file.get(), data[i], header.sections[i].size,
                             header.sections[i].offset);
        }
        if (ftruncate(file.get(), (off_t) header.file_bytes) != 0 || fsync(file.get()) != 0) {
            throw std::system_error(errno, std::generic_category(), temporary);
        }
        if (rename(temporary.c_str(), path(entry->name).c_str()) != 0) {
            if (errno != ENOENT) {
                throw std::system_error(errno, std::generic_category(), temporary);
            }
            lock guard(mutex); // somebody cleared the directory, or it is gone
            reserved_bytes = 0;
            forget(entry);
            return false;
        }
        file_handle dir(::open(options.dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (dir) {
            fsync(dir.get());
        }
    } catch (const std::system_error &) {
        unlink(temporary.c_str());
        lock guard(mutex);
        counters.failed_writes++;
        reserved_bytes = 0;
        forget(entry);
        throw;
    }
    lock guard(mutex);
    reserved_bytes = 0;
    entry->header = header;
    entry->durable = true;
    entry->used_ns = now_ns();
    token_cache.emplace_front(entry->name, std::move(entry->tokens));
    entry->tokens = nullptr;
    counters.written_bytes += header.file_bytes;
    counters.payload_bytes += payload;
    counters.written_files++;
    return true;
}

kv_read kv_store::open(const kv_entry & entry, const std::function<uint8_t *(size_t)> & allocate,
                       kv_file_reader & reader) {
    const auto status = reader.open(path(entry.name), entry.header, allocate);
    if (status == kv_read::ok) {
        lock guard(mutex);
        counters.read_bytes += entry.header.file_bytes;
        counters.read_files++;
    }
    return status;
}

} // namespace llama_ai
