// The experts of one model that are in memory, within a budget, and the reading
// of those that are not. What computes asks need() and slice(); threads of our
// own read.
//
// One lock guards everything; a slice that is there costs two atomic operations
// and no lock. One graph of a model is computed at a time (upstream's server
// decodes on one thread).
//
// Why any budget works: the threads of an operation walk the experts in one
// order, so what all of them have passed can make room for what is still to
// come.
#pragma once

#include "expert_files.h"
#include "expert_layout.h"
#include "expert_policy.h"
#include "expert_pool.h"
#include "expert_routing.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace llama_ai {

struct expert_cache_options {
    uint64_t budget_bytes = 0;        // 0: no memory of our own, the kernel's page cache decides
    int n_threads = 4;                // that read
    double timeout_s = 60;            // waiting for one slice before the request fails
    uint64_t chunk_bytes = 512 << 10; // one read; a multiple of expert_page
    bool stream_ahead = true;         // in prefill, read the next layer while this one computes
    std::function<void(const std::string &)> warn; // what the user should know, one line
};

struct expert_counters {
    uint64_t hits = 0,
             misses = 0;     // units that a layer wanted: there, or not (yet)
    uint64_t read_bytes = 0; // asked of the files
    uint64_t read_ns = 0;    // with at least one read going on
    uint64_t stall_ns = 0;   // the computation waited
    uint64_t evictions = 0;
    uint64_t predicted = 0,
             predicted_used = 0; // units read ahead, and of which were wanted
    uint64_t tokens = 0;         // that passed the layers with experts
    uint64_t failed_reads = 0;
    uint64_t resident_bytes = 0, resident_units = 0; // now
};

class expert_cache {
public:
    // Throws std::bad_alloc, std::system_error (threads).
    expert_cache(expert_layout layout, std::vector<std::unique_ptr<expert_file>> files,
                 const expert_cache_options & options);
    ~expert_cache(); // joins the threads

    // Thread 0, before an operation with this matrix. `routing.rows` must be set.
    void need(int matrix, const expert_routing & routing, int n_threads);
    // Every thread, after need(): in which order to walk the experts, or null for
    // ascending: those that are there first, so that reading goes on behind the
    // computation.
    const int32_t * order() const {
        return flow.ordered ? flow.order.data() : nullptr;
    }
    // The slice of one expert, in that order. Blocks until it is there; zeros
    // after a failure, which finish() tells.
    const char * slice(int matrix, int expert, int thread);
    // The graph has been computed. False: a slice was missing, what was computed
    // is worthless, and `error` says why.
    bool finish(std::string & error);

    // Whether this call to need() began a layer (in contrast to its further
    // matrices).
    bool at_layer_start() const {
        return flow.at_start;
    }

    // Units of a layer that will probably be wanted, likeliest first. Returns at
    // once.
    void read_ahead(int layer, const std::vector<int> & experts);
    // Whether the expert is in memory or on its way.
    bool has(int layer, int expert) const;

    // How often a token chose each unit before (expert_stats::rates), 0 for
    // "never"; may be empty. Before the first graph.
    void seed(const std::vector<double> & rates);
    // Fills the memory that is free with the units that were chosen most; with
    // room for all of them, with all. Returns at once.
    void prewarm(const std::vector<double> & rates);

    // Gives memory back. Not while a graph is being computed.
    void shrink(uint64_t budget_bytes);

    expert_counters counters() const;
    uint64_t memory_bytes() const; // of the pool
    std::string last_error() const;
    bool direct() const;
    const expert_layout & layout() const {
        return shape;
    }

private:
    enum class state : uint8_t { absent, queued, reading, ready, failed };
    enum urgency { now, soon, sometime, n_urgencies };
    struct part {
        state is = state::absent;
        uint8_t urgency = n_urgencies;
        uint16_t n_chunks = 0, next_chunk = 0, done_chunks = 0;
        uint32_t tried_in = 0; // the graph that tried once more after a failure
    };
    struct unit {
        int slot = -1;
        uint32_t serial = 0;   // counts evictions, so that stale jobs are recognised
        int reading = 0;       // chunks being read
        uint64_t op = 0;       // the last operation that needs it
        uint64_t visit = 0;    // the last layer visit that needs it
        uint64_t ahead = 0;    // the layer visit until which it is kept, because it was read ahead
        bool guessed = false;  // by read_ahead(), and not wanted yet
        bool streamed = false; // came with a prompt, is the first to go with the next one
        uint32_t check_at = 0,
                 check_after = 0; // page cache only: when to look again
    };
    struct job {
        int unit = 0, part = 0;
        uint32_t serial = 0;
    };
    struct chunk {
        int unit = 0, part = 0;
        char * to = nullptr;
        expert_file * file = nullptr;
        uint64_t offset = 0, bytes = 0, must = 0;
    };
    struct alignas(64) progress {
        std::atomic<int> at{-1};
    };
    struct current {
        bool active = false; // an operation may be using slices
        bool at_start = false;
        bool streaming = false;
        bool failed = false;
        int layer = -1, matrix = -1, n_threads = 0, n_tokens = 0;
        uint64_t op = 0, visit = 0;
        uint32_t parts_done = 0;  // of this layer visit, one bit each
        std::vector<int> experts; // of the operation, in the order of the walk
        size_t next = 0;          // of these, the first that has no slot yet
        // Read by all threads between two calls of need().
        bool ordered = false;
        std::vector<int32_t> order; // [n_expert]
        std::vector<int> place;     // [n_expert] in `experts`
    };

    using lock = std::unique_lock<std::mutex>;

    static uint64_t ns_since(std::chrono::steady_clock::time_point start) {
        return (uint64_t) std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now() - start)
            .count();
    }

    bool mapped() const {
        return options.budget_bytes == 0;
    }
    part & part_of(int unit, int index) {
        return parts[(size_t) unit * shape.max_parts + index];
    }
    const expert_matrix & matrix_of(int unit, int index) const {
        return shape.matrices[shape.layers[shape.layer_of(unit)].matrices[index]];
    }
    std::atomic<const char *> & pointer(int matrix, int expert) {
        return pointers[(size_t) matrix * shape.n_expert + expert];
    }
    int n_parts(int unit) const {
        return (int) shape.layers[shape.layer_of(unit)].matrices.size();
    }
    int class_of(int unit) const {
        return shape.layers[shape.layer_of(unit)].size_class;
    }

    void put_in_order(const int64_t * rows);
    bool passed_by_all(int place) const;
    bool reached_by_any(int place) const;
    bool evictable(int unit) const;
    bool dispensable(int unit) const;
    void evict(int unit);
    bool evict_unreached(int size_class);
    int find_slot(int unit, bool streaming, bool must);
    int stream_slots(int size_class) const;
    template <typename Predicate>
    int least_used(int size_class, Predicate && wanted);
    template <typename Predicate>
    int oldest_streamed(int size_class, Predicate && wanted);
    void occupy(int unit, int slot);
    void mark_streamed(int unit);
    void settle_layer(int layer);
    void exchange(int unit);
    void admit();
    void enqueue(int unit, int index, urgency when);
    void wake_workers();
    void look_again(int unit);
    void stream_next(int layer);
    bool take_chunk(chunk & out);
    void give_chunk(const chunk & done, bool ok, const expert_read_error & error);
    void work();
    const char * wait_for(int matrix, int expert, int thread);
    void fail(const std::string & why);

    expert_layout shape;
    std::vector<std::unique_ptr<expert_file>> files;
    expert_cache_options options;
    expert_policy policy;
    std::unique_ptr<expert_pool> pool;
    std::vector<std::atomic<const char *>> pointers; // [matrix][expert], null: not there
    std::unique_ptr<progress[]> passed;              // [thread] its place in flow.experts
    std::atomic<bool> pending{false};                // some of the operation's units have no slot
    std::atomic<uint64_t> spun_ns{0};                // waited without the lock
    const char * zeros = nullptr;
    size_t zeros_bytes = 0;

    mutable std::mutex mutex; // guards what follows
    std::condition_variable work_wanted, something_read;
    std::vector<unit> units;
    std::vector<part> parts;
    std::vector<std::deque<job>> streamed; // units that came with a prompt, one queue a size class
    std::vector<int> n_streamed;
    // Of the layers that this graph has passed, what stays, least used first.
    using scored = std::pair<double, int>;
    std::vector<std::priority_queue<scored, std::vector<scored>, std::greater<scored>>> settled;
    std::deque<job> queues[n_urgencies];
    current flow;
    expert_counters counts;
    int reads = 0, waiting = 0, idle = 0;
    uint32_t n_graphs = 1; // that were begun
    std::chrono::steady_clock::time_point reading_since;
    std::string failure, latest_failure;
    bool stop = false;
    std::vector<std::thread> threads;
};

} // namespace llama_ai
