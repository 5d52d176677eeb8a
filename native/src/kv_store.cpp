#include "kv_store.h"

#include "kv_posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <system_error>

namespace llama_ai {

namespace fs = std::filesystem;

static const char * const temporary_prefix = ".writing-";
static const char * const bad_suffix = ".bad";
static const size_t token_cache_bytes = 32 << 20;

static bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

static bool starts_with(const std::string & text, const std::string & start) {
    return text.compare(0, start.size(), start) == 0;
}

static std::vector<std::string> names_in(const std::string & dir) {
    std::vector<std::string> names;
    DIR * handle = opendir(dir.c_str());
    if (!handle) {
        return names;
    }
    while (const dirent * item = readdir(handle)) {
        names.push_back(item->d_name);
    }
    closedir(handle);
    return names;
}

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

kv_store::kv_store(kv_store_options given) : options(std::move(given)) {
    struct stat info;
    if (stat(options.dir.c_str(), &info) != 0) {
        std::error_code error;
        fs::create_directories(fs::path(options.dir).parent_path(), error);
        if (mkdir(options.dir.c_str(), 0700) != 0 && errno != EEXIST) {
            throw std::runtime_error(options.dir + ": " + std::strerror(errno));
        }
    } else if (!S_ISDIR(info.st_mode)) {
        throw std::runtime_error(options.dir + " is not a directory");
    } else if ((info.st_mode & 077) != 0) {
        // Closing somebody else's directory to the world would be a surprise.
        for (const auto & name : names_in(options.dir)) {
            if (name != "." && name != ".." && !ends_with(name, ".kv") &&
                !ends_with(name, bad_suffix) && !starts_with(name, temporary_prefix)) {
                throw std::runtime_error(options.dir + " is open to other users and holds other "
                                                       "files; name an empty directory");
            }
        }
        if (chmod(options.dir.c_str(), 0700) != 0) {
            throw std::runtime_error(options.dir + ": " + std::strerror(errno));
        }
    }

    // Servers in containers share directories, and process numbers as well.
    std::random_device random;
    writer_name = std::to_string(random()) + "-" + std::to_string(random()) + "-";

    // Whether we may write is found out by writing: access() does not know of full or failing
    // disks.
    const std::string probe = path(temporary_prefix + writer_name + "probe");
    file_handle file(open(probe.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
    if (!file) {
        throw std::runtime_error(options.dir + ": " + std::strerror(errno));
    }
    unlink(probe.c_str());

    lock guard(mutex);
    scan();
    make_room(0);
}

std::string kv_store::path(const std::string & name) const {
    return options.dir + "/" + name;
}

void kv_store::refresh() {
    struct stat info;
    lock guard(mutex);
    if (stat(options.dir.c_str(), &info) == 0 && time_ns(info.st_mtim) != dir_changed_ns) {
        scan();
    }
}

void kv_store::scan() {
    struct stat info;
    // Before reading: a file that comes meanwhile then makes us read once more, not once less.
    if (stat(options.dir.c_str(), &info) == 0) {
        dir_changed_ns = time_ns(info.st_mtim);
    }
    std::unordered_set<std::string> seen;
    set_aside_bytes.clear();
    const int64_t now = now_ns();
    for (const auto & name : names_in(options.dir)) {
        if (starts_with(name, temporary_prefix)) {
            // Whoever writes it holds a lock on it; nobody does once the writer was killed.
            file_handle file(open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
            if (file && flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
                unlink(path(name).c_str());
            }
            continue;
        }
        if (ends_with(name, bad_suffix)) {
            if (stat(path(name).c_str(), &info) == 0) {
                set_aside_bytes[name] = (uint64_t) info.st_size;
            }
            continue;
        }
        if (!ends_with(name, ".kv")) {
            continue;
        }
        seen.insert(name);
        if (entries.count(name)) {
            continue; // a file does not change
        }
        file_handle file(open(path(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (!file || fstat(file.get(), &info) != 0) {
            seen.erase(name);
            continue;
        }
        const int64_t used = time_ns(info.st_mtim);
        auto entry = std::make_shared<kv_entry>();
        entry->name = name;
        entry->durable = true;
        entry->used_ns = used;
        uint8_t fixed[kv_fixed_bytes];
        if (!read_all(file.get(), fixed, sizeof(fixed), 0) || !kv_decode(fixed, entry->header) ||
            entry->header.file_bytes != (uint64_t) info.st_size) {
            entry->header.file_bytes = (uint64_t) info.st_size;
            set_aside(entry);
            continue;
        }
        if (used > now + 3600ll * 1000000000) {
            // The clock was ahead when it was written; it would never be the oldest.
            touch({entry});
        }
        insert(entry);
    }
    for (auto it = entries.begin(); it != entries.end();) {
        const auto entry = (it++)->second;
        if (entry->durable && !seen.count(entry->name)) {
            forget(entry);
        }
    }
}

void kv_store::insert(const kv_entry_ptr & entry) {
    entries[entry->name] = entry;
    by_start.emplace(entry->header.start_key, entry);
    if (entry->header.kind == kv_kind::partial) {
        partials_by_first.emplace(entry->header.first_key, entry);
    }
}

template <typename Index>
static void erase_from(Index & index, const kv_key & key, const kv_entry_ptr & entry) {
    const auto range = index.equal_range(key);
    for (auto it = range.first; it != range.second; ++it) {
        if (it->second == entry) {
            index.erase(it);
            return;
        }
    }
}

void kv_store::forget(const kv_entry_ptr & entry) {
    entries.erase(entry->name);
    erase_from(by_start, entry->header.start_key, entry);
    erase_from(partials_by_first, entry->header.first_key, entry);
    token_cache.remove_if([&](const auto & item) { return item.first == entry->name; });
}

void kv_store::remove(const kv_entry_ptr & entry, bool evicted) {
    unlink(path(entry->name).c_str());
    forget(entry);
    if (evicted) {
        counters.evicted_files++;
        if (evicted_starts.size() > 4096) {
            evicted_starts.clear();
        }
        evicted_starts.insert(entry->header.start_key.low ^ entry->header.next_key.high);
    }
}

void kv_store::set_aside(const kv_entry_ptr & entry) {
    lock guard(mutex);
    counters.damaged_files++;
    const std::string name = entry->name + bad_suffix;
    if (rename(path(entry->name).c_str(), path(name).c_str()) == 0) {
        set_aside_bytes[name] = entry->header.file_bytes;
    }
    forget(entry);
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
    file_handle file(open(path(entry->name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
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

kv_plan kv_store::find(const kv_query & query) {
    lock guard(mutex);
    kv_plan plan;
    const auto keys = kv_block_keys(query.fingerprint, query.space, query.tokens, query.count);
    std::vector<kv_plan::piece> segments;
    std::vector<kv_entry_ptr> partials;
    for (size_t block = 0; block < keys.size(); block++) {
        std::vector<kv_entry_ptr> candidates; // a bad one leaves the index while we look at it
        std::vector<kv_entry_ptr> parting;    // in the next block: less than a block to be had
        const auto range = by_start.equal_range(keys[block]);
        for (auto it = range.first; it != range.second; ++it) {
            const auto & next = it->second->header.next_key;
            const bool parts = block + 1 < keys.size() && !next.empty() && next != keys[block + 1];
            (parts ? parting : candidates).push_back(it->second);
        }
        // A popular system prompt has thousands of these.
        const auto most = parting.begin() + (ptrdiff_t) std::min<size_t>(parting.size(), 16);
        std::partial_sort(parting.begin(), most, parting.end(),
                          [](const auto & a, const auto & b) { return a->used_ns > b->used_ns; });
        candidates.insert(candidates.end(), parting.begin(), most);
        for (const auto & entry : candidates) {
            const auto & header = entry->header;
            if (!(header.fingerprint == query.fingerprint) || header.space != query.space ||
                (!entry->durable && !query.pending)) {
                continue;
            }
            // With another first block less than a block is common, and that is not worth it.
            if (block == 0 && !header.next_key.empty() &&
                (keys.size() < 2 || header.next_key != keys[1])) {
                continue;
            }
            const auto stored = tokens(entry);
            if (!stored) {
                continue;
            }
            const size_t length = std::min(stored->size(), query.count);
            const auto differ =
                std::mismatch(stored->begin(), stored->begin() + (ptrdiff_t) length, query.tokens);
            const int32_t common = (int32_t) (differ.first - stored->begin());
            if (common > plan.matched) {
                plan.matched = common;
                plan.closest = entry;
            }
            if (header.kind == kv_kind::segment && common > header.begin) {
                segments.push_back({entry, header.begin, common});
            } else if (header.kind == kv_kind::partial && common == header.end &&
                       header.end <= query.max_end) {
                partials.push_back(entry);
            }
        }
    }

    if (!query.segments && plan.matched == 0 && keys.size() > 1) {
        // Without cells nothing says where two conversations part but the states' own tokens.
        const auto range = partials_by_first.equal_range(keys[1]);
        int looked_at = 0;
        for (auto it = range.first; it != range.second && looked_at < 64; ++it, ++looked_at) {
            const kv_entry_ptr entry = it->second;
            const auto stored = entry->durable ? tokens(entry) : nullptr;
            if (!stored) {
                break; // the index has changed
            }
            const size_t length = std::min(stored->size(), query.count);
            const auto differ =
                std::mismatch(stored->begin(), stored->begin() + (ptrdiff_t) length, query.tokens);
            const int32_t common = (int32_t) (differ.first - stored->begin());
            if (common > plan.matched) {
                plan.matched = common;
                plan.closest = entry;
            }
        }
    }

    // From each position the piece that reaches farthest.
    std::vector<kv_plan::piece> cover;
    while (query.segments) {
        const kv_plan::piece * best = nullptr;
        for (const auto & piece : segments) {
            if (piece.begin <= plan.covered && piece.end > plan.covered &&
                (!best || piece.end > best->end)) {
                best = &piece;
            }
        }
        if (!best) {
            break;
        }
        if (!cover.empty()) {
            cover.back().end = std::min(cover.back().end, best->begin);
        }
        plan.covered = best->end;
        cover.push_back(*best);
    }
    plan.tokens = plan.covered;
    if (query.partial) {
        plan.tokens = 0;
        for (const auto & entry : partials) {
            if ((!query.segments || entry->header.end <= plan.covered) &&
                entry->header.end > plan.tokens) {
                plan.tokens = entry->header.end;
                plan.partial = entry;
            }
        }
    }
    for (const auto & piece : cover) {
        if (piece.begin < plan.tokens) {
            plan.pieces.push_back(piece);
            plan.pieces.back().end = std::min(piece.end, plan.tokens);
        }
    }
    for (const auto & item : entries) {
        const auto & header = item.second->header;
        const bool own = header.fingerprint == query.fingerprint && header.space == query.space;
        (own ? plan.own : plan.others)++;
    }
    plan.evicted = keys.size() > 1 && evicted_starts.count(keys[0].low ^ keys[1].high) > 0;
    return plan;
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
        header.sections[i].checksum = xxh64(data[i], header.sections[i].size);
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
            write_all(file.get(), data[i], header.sections[i].size, header.sections[i].offset);
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
        file_handle dir(open(options.dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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

kv_read kv_store::read(const kv_entry & entry, const std::function<uint8_t *(size_t)> & allocate,
                       kv_header & header) {
    file_handle file(open(path(entry.name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat info;
    if (!file || fstat(file.get(), &info) != 0) {
        return errno == ENOENT ? kv_read::missing : kv_read::failed;
    }
    const size_t size = (size_t) info.st_size;
    if (size != entry.header.file_bytes) {
        return kv_read::damaged;
    }
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    uint8_t * bytes = allocate(size);
    if (!bytes || !read_all(file.get(), bytes, size, 0)) {
        return kv_read::failed;
    }
    if (!kv_decode(bytes, header) || header.file_bytes != size ||
        !(header.fingerprint == entry.header.fingerprint) || header.space != entry.header.space ||
        header.kind != entry.header.kind || header.begin != entry.header.begin ||
        header.end != entry.header.end ||
        xxh64(bytes + kv_fixed_bytes, header.tokens_bytes()) != header.tokens_checksum) {
        return kv_read::damaged;
    }
    for (const auto & section : header.sections) {
        if (xxh64(bytes + section.offset, section.size) != section.checksum) {
            return kv_read::damaged;
        }
    }
    lock guard(mutex);
    counters.read_bytes += size;
    counters.read_files++;
    return kv_read::ok;
}

} // namespace llama_ai
