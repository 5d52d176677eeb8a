// What the KV store keeps and what it drops.

#include "kv_posix.h"
#include "kv_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace llama_ai {

uint64_t kv_store::cap_bytes() const {
    uint64_t used = 0;
    for (const auto & item : entries) {
        used += item.second->durable ? item.second->header.file_bytes : 0;
    }
    for (const auto & item : set_aside_bytes) {
        used += item.second;
    }
    struct statvfs disk;
    if (statvfs(options.dir.c_str(), &disk) != 0) {
        return options.max_bytes;
    }
    const uint64_t free = (uint64_t) disk.f_bavail * disk.f_frsize;
    return std::min(options.max_bytes, (free + used) / 2);
}

std::vector<kv_entry_ptr> kv_store::in_order_of_eviction() const {
    // Of each fingerprint the system prompts used last are protected, with all that is as new:
    // using one marks its pieces as used, the prompt's end as the oldest of them.
    std::map<std::pair<uint64_t, uint64_t>, std::vector<int64_t>> ends;
    for (const auto & item : entries) {
        const auto & header = item.second->header;
        if (header.flags & kv_flag_system_end) {
            ends[{header.fingerprint.low, header.fingerprint.high}].push_back(item.second->used_ns);
        }
    }
    for (auto & item : ends) {
        std::sort(item.second.rbegin(), item.second.rend());
    }
    const auto is_protected = [&](const kv_header & header, int64_t used_ns) {
        const auto found = ends.find({header.fingerprint.low, header.fingerprint.high});
        if (!(header.flags & kv_flag_system) || found == ends.end() || options.max_system <= 0) {
            return false;
        }
        const auto & times = found->second;
        return used_ns >= times[std::min<size_t>(times.size(), (size_t) options.max_system) - 1];
    };

    std::vector<std::tuple<bool, int64_t, int32_t, kv_entry_ptr>> order;
    for (const auto & item : entries) {
        const auto & entry = item.second;
        if (entry->durable) {
            order.emplace_back(is_protected(entry->header, entry->used_ns), entry->used_ns,
                               -entry->header.end, entry);
        }
    }
    std::sort(order.begin(), order.end());
    std::vector<kv_entry_ptr> result;
    for (auto & item : order) {
        result.push_back(std::get<3>(item));
    }
    return result;
}

bool kv_store::make_room(uint64_t wanted) {
    lock guard(mutex);
    refresh();
    const uint64_t cap = cap_bytes();
    if (wanted > cap) {
        return false;
    }
    uint64_t used = reserved_bytes;
    for (const auto & item : entries) {
        used += item.second->durable ? item.second->header.file_bytes : 0;
    }
    for (const auto & item : set_aside_bytes) {
        used += item.second;
    }
    for (auto it = set_aside_bytes.begin(); it != set_aside_bytes.end() && used + wanted > cap;) {
        unlink(path(it->first).c_str());
        used -= it->second;
        it = set_aside_bytes.erase(it);
    }
    const int64_t now = now_ns();
    const bool age_is_due = now - ages_checked_ns > 600ll * 1000000000 || now < ages_checked_ns;
    if (used + wanted <= cap && !age_is_due) {
        return true;
    }
    ages_checked_ns = now;
    bool again = false;
    for (const auto & entry : in_order_of_eviction()) {
        const bool too_old =
            options.max_age_s > 0 && entry->used_ns < now - options.max_age_s * 1000000000;
        if (too_old || used + wanted > cap) {
            struct stat info;
            if (stat(path(entry->name).c_str(), &info) == 0 &&
                time_ns(info.st_mtim) > entry->used_ns + 1000000000) {
                entry->used_ns = time_ns(info.st_mtim); // another server used it
                again = true;
                continue;
            }
            used -= entry->header.file_bytes;
            remove(entry, true);
        }
    }
    if (used + wanted > cap && again) {
        return make_room(wanted); // now with what other servers used in its place
    }
    return used + wanted <= cap;
}

void kv_store::touch(const std::vector<kv_entry_ptr> & used) {
    lock guard(mutex);
    int64_t now = now_ns();
    for (auto it = used.rbegin(); it != used.rend(); ++it, now += 1000) {
        (*it)->used_ns = now;
        const timespec time = {(time_t) (now / 1000000000), (long) (now % 1000000000)};
        const timespec times[2] = {time, time};
        utimensat(AT_FDCWD, path((*it)->name).c_str(), times, 0);
    }
}

void kv_store::drop(const std::vector<kv_entry_ptr> & replaced) {
    lock guard(mutex);
    for (const auto & entry : replaced) {
        if (entry->durable && !(entry->header.flags & kv_flag_system)) {
            remove(entry, false);
        }
    }
}

size_t kv_store::clear(const kv_key * fingerprint) {
    lock guard(mutex);
    scan();
    size_t count = 0;
    for (auto it = entries.begin(); it != entries.end();) {
        const auto entry = (it++)->second;
        if (entry->durable && (!fingerprint || entry->header.fingerprint == *fingerprint)) {
            remove(entry, false);
            count++;
        }
    }
    if (!fingerprint) {
        for (const auto & item : set_aside_bytes) {
            unlink(path(item.first).c_str());
            count++;
        }
        set_aside_bytes.clear();
    }
    evicted_starts.clear();
    return count;
}

std::vector<kv_entry_ptr> kv_store::system_prompts(const kv_key & fingerprint) {
    lock guard(mutex);
    std::vector<kv_entry_ptr> result;
    for (const auto & item : entries) {
        const auto & header = item.second->header;
        if (header.fingerprint == fingerprint && (header.flags & kv_flag_system_end)) {
            result.push_back(item.second);
        }
    }
    return result;
}

kv_store_stats kv_store::stats(const kv_key & fingerprint) {
    lock guard(mutex);
    refresh();
    kv_store_stats result = counters;
    result.cap_bytes = cap_bytes();
    for (const auto & item : entries) {
        const auto & header = item.second->header;
        if (!item.second->durable) {
            continue;
        }
        result.files++;
        result.bytes += header.file_bytes;
        if (header.fingerprint == fingerprint) {
            result.own_files++;
            result.own_bytes += header.file_bytes;
            result.system_prompts += (header.flags & kv_flag_system_end) ? 1 : 0;
        }
    }
    for (const auto & item : set_aside_bytes) {
        result.bytes += item.second;
    }
    return result;
}

} // namespace llama_ai
