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

static const char * const bad_suffix = ".bad";

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
    file_handle file(::open(probe.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
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
            file_handle file(::open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
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
        file_handle file(::open(path(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
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

} // namespace llama_ai
