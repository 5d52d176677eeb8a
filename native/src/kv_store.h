// The files of the KV store: one directory, flat, shared by all models and by any number of
// servers. A file is complete and never changes once it has its name, so readers and writers of
// several processes need no lock: a writer makes a temporary file and renames it, a reader checks
// everything it reads, and whoever finds a file gone has a miss. The index is made from the files'
// headers and can always be made again.
#pragma once

#include "kv_format.h"
#include "kv_reader.h"

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace llama_ai {

// Files that are being written have names that begin like this.
constexpr char temporary_prefix[] = ".writing-";

using kv_tokens = std::shared_ptr<const std::vector<int32_t>>;

struct kv_entry {
    std::string name;
    kv_header header;
    int64_t used_ns = 0;  // the file's modification time: when it was last used
    bool durable = false; // false: still in the writer's queue
    kv_tokens tokens;     // held while not durable
};

using kv_entry_ptr = std::shared_ptr<kv_entry>;

struct kv_store_options {
    std::string dir;
    uint64_t max_bytes = 20ull << 30;
    int64_t max_age_s = 30 * 86400; // 0: no limit
    int max_system = 8;             // protected system prompts per fingerprint
};

struct kv_query {
    kv_key fingerprint;
    uint64_t space = 0;
    const int32_t * tokens = nullptr;
    size_t count = 0;
    bool segments = true;        // the model has state that is cut by position
    bool partial = false;        // the model has state that is not
    int32_t max_end = INT32_MAX; // for partial state: of at most so many tokens
    bool pending = false;        // count what is queued as stored
};

// How to get the longest usable prefix of a query's tokens.
struct kv_plan {
    struct piece {
        kv_entry_ptr entry;
        int32_t begin = 0; // where the next piece or the end cuts it: it may hold more cells
        int32_t end = 0;
    };
    int32_t tokens = 0; // usable tokens, 0 for nothing
    std::vector<piece> pieces;
    kv_entry_ptr partial;
    int32_t matched = 0;  // the longest common prefix with anything stored
    kv_entry_ptr closest; // what has it
    int32_t covered = 0;  // of which segments are stored
    int64_t others = 0;   // entries of other fingerprints or namespaces
    int64_t own = 0;      // entries of this one
    bool evicted = false; // something with this beginning was dropped earlier
};

struct kv_store_stats {
    uint64_t bytes = 0, files = 0, own_bytes = 0, own_files = 0, system_prompts = 0;
    uint64_t cap_bytes = 0;
    uint64_t written_bytes = 0, written_files = 0, skipped_files = 0;
    uint64_t payload_bytes = 0; // of what was written: state alone
    uint64_t read_bytes = 0, read_files = 0;
    uint64_t evicted_files = 0, damaged_files = 0, failed_writes = 0;
};

class kv_store {
public:
    // Makes the directory (0700) where it is missing, clears what a killed server left, and reads
    // the index. Throws std::runtime_error when the directory cannot be used for writing.
    explicit kv_store(kv_store_options options);

    // Reads the index again if files came or went since the last time.
    void refresh();

    kv_plan find(const kv_query & query);

    // A file that is about to be written, so that it is not queued twice. Null when it exists or
    // is queued already. It must be ended by write() or abandon().
    kv_entry_ptr announce(const kv_header & header, kv_tokens tokens);
    void abandon(const kv_entry_ptr & entry);

    // Writes the file of an announced entry. `data[i]` is the content of sections[i]; checksums are
    // made here. Throws std::system_error when the disk fails, after removing what it began; false
    // when the file does not fit the cap, with nothing written.
    bool write(const kv_entry_ptr & entry, const std::vector<const uint8_t *> & data);

    // Opens the file of an entry, for reading all of it.
    kv_read open(const kv_entry & entry, const std::function<uint8_t *(size_t)> & allocate,
                 kv_file_reader & reader);

    // A bad file gets another name and is counted; it is dropped before anything else is.
    void set_aside(const kv_entry_ptr & entry);

    // Marks files as used now, the last one first: what others build on is never older than they.
    void touch(const std::vector<kv_entry_ptr> & entries);

    // Drops files that something newer replaces; what is not durable or protected stays.
    void drop(const std::vector<kv_entry_ptr> & entries);

    // Drops everything, or what belongs to one fingerprint. Returns the number of files.
    size_t clear(const kv_key * fingerprint = nullptr);

    // Drops what is too old, and the oldest until `wanted` more bytes fit. False when they never
    // will.
    bool make_room(uint64_t wanted);

    // The system prompts of a fingerprint.
    std::vector<kv_entry_ptr> system_prompts(const kv_key & fingerprint);

    kv_store_stats stats(const kv_key & fingerprint);

    // The tokens of an entry, null when its file is gone or bad. Kept for the next time.
    kv_tokens tokens(const kv_entry_ptr & entry);

    const std::string & dir() const {
        return options.dir;
    }

private:
    using lock = std::lock_guard<std::recursive_mutex>;

    void scan();
    void insert(const kv_entry_ptr & entry);
    void forget(const kv_entry_ptr & entry);
    void remove(const kv_entry_ptr & entry, bool evicted);
    uint64_t cap_bytes() const;
    std::vector<kv_entry_ptr> in_order_of_eviction() const;
    std::string path(const std::string & name) const;

    kv_store_options options;
    mutable std::recursive_mutex mutex; // held for memory and small files only, never for payloads
    std::unordered_map<std::string, kv_entry_ptr> entries;
    std::unordered_multimap<kv_key, kv_entry_ptr, kv_key_hash> by_start;
    std::unordered_multimap<kv_key, kv_entry_ptr, kv_key_hash> partials_by_first;
    std::unordered_map<std::string, uint64_t> set_aside_bytes;
    std::unordered_set<uint64_t> evicted_starts;
    std::list<std::pair<std::string, kv_tokens>> token_cache; // the latest first
    uint64_t reserved_bytes = 0;                              // of the file being written
    int64_t dir_changed_ns = 0;
    int64_t ages_checked_ns = 0;
    std::string writer_name; // no other store has it
    uint64_t temporary_count = 0;
    kv_store_stats counters;
};

} // namespace llama_ai
