#include "expert_cache.h"

#include <algorithm>
#include <csignal>
#include <new>
#include <numeric>

#include <pthread.h>
#include <sys/mman.h>

namespace llama_ai {

static const int max_threads = 512; // upstream's GGML_MAX_N_THREADS

static const uint64_t spin_ns = 200 * 1000;

static void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static expert_policy_options policy_options(const expert_layout & shape,
                                            const expert_cache_options & options) {
    expert_policy_options result;
    const auto slots = shape.slots_for(options.budget_bytes);
    result.budget_units = std::accumulate(slots.begin(), slots.end(), 0);
    return result;
}

expert_cache::expert_cache(expert_layout layout, std::vector<std::unique_ptr<expert_file>> opened,
                           const expert_cache_options & given)
    : shape(std::move(layout)), files(std::move(opened)), options(given),
      policy((int) shape.layers.size(), shape.n_expert, policy_options(shape, given)),
      pointers(shape.matrices.size() * (size_t) shape.n_expert), passed(new progress[max_threads]) {
    options.chunk_bytes = std::max(expert_page, options.chunk_bytes / expert_page * expert_page);
    for (const auto & matrix : shape.matrices) {
        zeros_bytes = std::max<size_t>(zeros_bytes, matrix.slice_bytes);
        // n_chunks is 16 bits wide
        options.chunk_bytes = std::max(
            options.chunk_bytes, (matrix.slice_bytes / 32768 / expert_page + 1) * expert_page);
    }
    void * memory = mmap(nullptr, zeros_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        throw std::bad_alloc();
    }
    zeros = (const char *) memory;
    try {
        if (!mapped()) {
            pool = std::make_unique<expert_pool>(shape.class_slot_bytes,
                                                 shape.slots_for(options.budget_bytes));
        }
        flow.place.resize(shape.n_expert);
        units.resize(shape.n_units());
        parts.resize((size_t) shape.n_units() * shape.max_parts);
        streamed.resize(shape.class_units.size());
        n_streamed.resize(shape.class_units.size());
        settled.resize(shape.class_units.size());
        // Signals are the server's business.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        for (int i = 0; i < std::max(1, options.n_threads); i++) {
            threads.emplace_back([this] { work(); });
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    } catch (...) {
        munmap(memory, zeros_bytes);
        throw;
    }
}

expert_cache::~expert_cache() {
    {
        lock guard(mutex);
        stop = true;
    }
    work_wanted.notify_all();
    something_read.notify_all();
    for (auto & thread : threads) {
        thread.join();
    }
    munmap((void *) zeros, zeros_bytes);
}

void expert_cache::need(int matrix, const expert_routing & routing, int n_threads) {
    const auto & wanted = shape.matrices[matrix];
    lock guard(mutex);
    flow.active = true;
    flow.op++;
    flow.matrix = matrix;
    flow.n_threads = std::min(n_threads, max_threads);
    for (int i = 0; i < flow.n_threads; i++) {
        passed[i].at.store(-1, std::memory_order_relaxed);
    }
    flow.at_start = wanted.layer != flow.layer;
    if (flow.at_start) {
        if (flow.streaming && flow.layer >= 0) {
            settle_layer(flow.layer);
        }
        flow.layer = wanted.layer;
        flow.visit++;
        flow.parts_done = 0;
        // The last layer sees only the tokens whose result is asked for.
        flow.n_tokens = std::max(flow.n_tokens, routing.n_tokens);
        flow.streaming = routing.n_tokens > 1 && (int64_t) routing.n_tokens * routing.n_used >=
                                                     2 * (int64_t) wanted.n_expert;
        policy.used(routing);
    }
    flow.parts_done |= 1u << wanted.part;

    expert_read_error error;
    if (mapped() && !flow.failed && !files[wanted.file]->unchanged(error)) {
        fail(error.text);
    }
    flow.experts.clear();
    flow.next = 0;
    for (int expert = 0; expert < wanted.n_expert; expert++) {
        if (routing.rows[expert] == 0) {
            continue;
        }
        const int id = shape.unit(wanted.layer, expert);
        auto & one = units[id];
        flow.experts.push_back(expert);
        one.op = flow.op;
        one.visit = flow.visit;
        if (mapped() && !flow.failed) {
            look_again(id);
        } else if (mapped() && one.slot >= 0 && one.reading == 0) {
            evict(id); // what is mapped may not be there any more: nobody may touch it
        }
        if (!flow.at_start) {
            continue;
        }
        bool there = one.slot >= 0;
        for (int i = 0; i < n_parts(id) && there; i++) {
            there = part_of(id, i).is == state::ready;
        }
        (there ? counts.hits : counts.misses)++;
        if (one.guessed) {
            counts.predicted_used++;
            one.guessed = false;
        }
        one.ahead = 0;
        if (one.streamed && !flow.streaming) {
            one.streamed = false;
            n_streamed[class_of(id)]--;
        } else if (one.streamed) {
            exchange(id);
        }
    }
    put_in_order(routing.rows);
    if (flow.failed) {
        pending = false;
        return;
    }
    admit();
    if (!pending) {
        for (int i = 0; i < (int) shape.layers[wanted.layer].matrices.size(); i++) {
            for (int expert : flow.experts) {
                if (!(flow.parts_done & (1u << i))) {
                    enqueue(shape.unit(wanted.layer, expert), i, now);
                }
            }
        }
        if (flow.streaming && options.stream_ahead) {
            stream_next(wanted.layer);
        }
    }
    wake_workers();
}

const char * expert_cache::slice(int matrix, int expert, int thread) {
    // The order matters, see evict_unreached(): first say where we are, then
    // look.
    passed[std::min(thread, max_threads - 1)].at.store(flow.place[expert],
                                                       std::memory_order_seq_cst);
    if (!pending.load(std::memory_order_relaxed)) {
        const char * there = pointer(matrix, expert).load(std::memory_order_seq_cst);
        if (there) {
            return there;
        }
    }
    return wait_for(matrix, expert, thread);
}

const char * expert_cache::wait_for(int matrix, int expert, int thread) {
    const auto start = std::chrono::steady_clock::now();
    // A slice that is being read comes within a fraction of a millisecond. Going
    // to sleep and waking up again costs as much as that.
    while (!pending.load(std::memory_order_relaxed) && ns_since(start) < spin_ns) {
        if (const char * there = pointer(matrix, expert).load(std::memory_order_acquire)) {
            if (thread == 0) {
                spun_ns.fetch_add(ns_since(start), std::memory_order_relaxed);
            }
            return there;
        }
        for (int i = 0; i < 8; i++) {
            cpu_relax();
        }
    }
    lock guard(mutex);
    const int id = shape.unit(shape.matrices[matrix].layer, expert);
    auto & wanted = part_of(id, shape.matrices[matrix].part);
    bool waited = false, warned = false;
    const char * there = nullptr;
    for (;;) {
        if (pending) {
            admit();
            wake_workers();
        }
        there = pointer(matrix, expert).load(std::memory_order_seq_cst);
        if (there) {
            break;
        }
        if (wanted.is == state::failed && !flow.failed && units[id].reading == 0) {
            // It may have failed before it was needed: once more, now that it is.
            if (wanted.tried_in == n_graphs) {
                fail(latest_failure);
            } else {
                enqueue(id, shape.matrices[matrix].part, now);
                wanted.tried_in = n_graphs;
                wake_workers();
            }
        }
        if (flow.failed || stop) {
            there = zeros;
            break;
        }
        waited = true;
        waiting++;
        something_read.wait_for(guard, std::chrono::milliseconds(200));
        waiting--;
        const double seconds = (double) ns_since(start) / 1e9;
        const auto & file = *files[shape.matrices[matrix].file];
        if (seconds > options.timeout_s) {
            fail("the disk did not deliver a part of " + file.path() + " (at byte " +
                 std::to_string(shape.matrices[matrix].slice_offset(expert)) + ") within " +
                 std::to_string((int) options.timeout_s) + " s");
        } else if (seconds > 5 && !warned && thread == 0) {
            warned = true;
            if (options.warn) {
                options.warn("waiting for the disk for 5 s: " + file.path());
            }
        }
    }
    if (waited && thread == 0) {
        counts.stall_ns += ns_since(start);
    }
    return there;
}

bool expert_cache::finish(std::string & error) {
    lock guard(mutex);
    if (!flow.active) {
        return true;
    }
    flow.active = false;
    flow.layer = -1;
    flow.experts.clear();
    flow.next = 0;
    flow.streaming = false;
    for (auto & queue : settled) {
        queue = {};
    }
    pending = false;
    n_graphs++;
    counts.tokens += (uint64_t) flow.n_tokens;
    flow.n_tokens = 0;
    if (!flow.failed) {
        return true;
    }
    flow.failed = false;
    error = failure;
    return false;
}

void expert_cache::fail(const std::string & why) {
    if (!flow.failed) {
        flow.failed = true;
        failure = why;
        latest_failure = why;
        something_read.notify_all();
    }
}

// Those that are there go first, then what is being read already, then the
// rest.
void expert_cache::put_in_order(const int64_t * rows) {
    const auto & wanted = shape.matrices[flow.matrix];
    const auto rank = [&](int expert) {
        const auto is = part_of(shape.unit(wanted.layer, expert), wanted.part).is;
        return is == state::ready ? 0 : is == state::absent || is == state::failed ? 2 : 1;
    };
    int last = 0;
    flow.ordered = false;
    for (int expert : flow.experts) {
        const int now = rank(expert);
        flow.ordered = flow.ordered || now < last;
        last = now;
    }
    if (flow.ordered) {
        auto & all = flow.experts;
        std::stable_partition(all.begin(), all.end(), [&](int e) { return rank(e) < 2; });
        std::stable_partition(all.begin(), all.end(), [&](int e) { return rank(e) < 1; });
        flow.order.assign(all.begin(), all.end());
        for (int expert = 0; expert < wanted.n_expert; expert++) {
            if (rows[expert] == 0) {
                flow.order.push_back(expert);
            }
        }
    }
    for (size_t i = 0; i < flow.experts.size(); i++) {
        flow.place[flow.experts[i]] = (int) i;
    }
}

// Gives slots to the experts of the operation, in the order in which they will
// be asked for, as far as slots go.
void expert_cache::admit() {
    const auto & wanted = shape.matrices[flow.matrix];
    while (flow.next < flow.experts.size()) {
        const int id = shape.unit(wanted.layer, flow.experts[flow.next]);
        if (units[id].slot < 0) {
            const int slot = find_slot(id, flow.streaming, true);
            if (slot < 0) {
                break;
            }
            occupy(id, slot);
            if (flow.streaming) {
                mark_streamed(id);
                if (units[id].streamed) {
                    exchange(id);
                }
            }
        }
        enqueue(id, wanted.part, now);
        flow.next++;
    }
    pending.store(flow.next < flow.experts.size(), std::memory_order_relaxed);
}

expert_counters expert_cache::counters() const {
    lock guard(mutex);
    auto result = counts;
    result.stall_ns += spun_ns.load(std::memory_order_relaxed);
    if (reads > 0) {
        result.read_ns += ns_since(reading_since);
    }
    return result;
}

uint64_t expert_cache::memory_bytes() const {
    lock guard(mutex);
    return pool ? pool->bytes() : 0;
}

std::string expert_cache::last_error() const {
    lock guard(mutex);
    return latest_failure;
}

bool expert_cache::direct() const {
    return std::all_of(files.begin(), files.end(),
                       [](const auto & file) { return file->direct(); });
}

} // namespace llama_ai
