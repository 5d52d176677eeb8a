// Of expert_cache: what is to be read, and the threads that read it.

#include "expert_cache.h"

#include <algorithm>
#include <cstdlib>

namespace llama_ai {

void expert_cache::enqueue(int id, int index, urgency when) {
    auto & one = part_of(id, index);
    if (one.is == state::failed && units[id].reading == 0) {
        one.is = state::absent;
        one.urgency = n_urgencies;
        one.n_chunks = one.next_chunk = one.done_chunks = 0;
    }
    if (one.is == state::ready || one.is == state::failed || one.urgency <= when) {
        return;
    }
    if (one.is == state::absent) {
        const auto & matrix = matrix_of(id, index);
        const int expert = shape.expert_of(id);
        const uint64_t bytes = matrix.end_page(expert) - matrix.first_page(expert);
        one.is = state::queued;
        one.n_chunks = (uint16_t) ((bytes + options.chunk_bytes - 1) / options.chunk_bytes);
    }
    one.urgency = (uint8_t) when;
    if (one.next_chunk < one.n_chunks) {
        queues[when].push_back({id, index, units[id].serial});
    }
}

// As many threads as there are reads to do; each takes one after the other.
void expert_cache::wake_workers() {
    int jobs = 0;
    for (const auto & queue : queues) {
        for (size_t i = 0; i < queue.size() && jobs < idle; i++) {
            const auto & one = part_of(queue[i].unit, queue[i].part);
            jobs += std::max(1, one.n_chunks - one.next_chunk);
        }
    }
    for (int i = 0; i < std::min(jobs, idle); i++) {
        work_wanted.notify_one();
    }
}

// The prompt will need most of the next layer too: read it while this one
// computes.
void expert_cache::stream_next(int layer) {
    const int next = shape.next_layer(layer);
    if (next < 0) {
        return;
    }
    const int n = shape.n_experts_of(next);
    int end = 0; // experts below it have a slot
    for (; end < n; end++) {
        const int id = shape.unit(next, end);
        if (units[id].slot < 0) {
            if (mapped()) {
                look_again(id);
            }
            const int slot = units[id].slot >= 0 ? -2 : find_slot(id, true, false);
            if (slot == -1) {
                break;
            }
            if (slot >= 0) {
                occupy(id, slot);
                mark_streamed(id);
            }
        }
        units[id].ahead = flow.visit + 1;
    }
    for (int i = 0; i < (int) shape.layers[next].matrices.size(); i++) {
        for (int expert = 0; expert < end; expert++) {
            enqueue(shape.unit(next, expert), i, soon);
        }
    }
}

void expert_cache::read_ahead(int layer, const std::vector<int> & experts) {
    lock guard(mutex);
    if (flow.failed || pending) {
        return;
    }
    for (int expert : experts) {
        const int id = shape.unit(layer, expert);
        if (units[id].slot < 0) {
            const int slot = find_slot(id, false, false);
            if (slot < 0) {
                break;
            }
            occupy(id, slot);
            units[id].guessed = true;
            counts.predicted++;
        }
        units[id].ahead = flow.visit + 1;
    }
    for (int i = 0; i < (int) shape.layers[layer].matrices.size(); i++) {
        for (int expert : experts) {
            if (units[shape.unit(layer, expert)].slot >= 0) {
                enqueue(shape.unit(layer, expert), i, soon);
            }
        }
    }
    wake_workers();
}

bool expert_cache::has(int layer, int expert) const {
    lock guard(mutex);
    return units[shape.unit(layer, expert)].slot >= 0;
}

void expert_cache::seed(const std::vector<double> & rates) {
    lock guard(mutex);
    for (int id = 0; id < std::min((int) units.size(), (int) rates.size()); id++) {
        if (rates[id] > 0) {
            policy.seed(shape.layer_of(id), shape.expert_of(id), rates[id]);
        }
    }
}

void expert_cache::prewarm(const std::vector<double> & rates) {
    lock guard(mutex);
    if (mapped()) {
        return;
    }
    bool room_for_all = true;
    for (int i = 0; i < pool->n_classes(); i++) {
        room_for_all = room_for_all && pool->n_slots(i) >= shape.class_units[i];
    }
    const auto rate = [&](int id) { return id < (int) rates.size() ? rates[id] : 0; };
    std::vector<int> order;
    for (int id = 0; id < (int) units.size(); id++) {
        if (shape.expert_of(id) < shape.n_experts_of(shape.layer_of(id)) &&
            (rate(id) > 0 || room_for_all)) {
            order.push_back(id);
        }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rate(a) > rate(b); });
    for (int id : order) {
        if (units[id].slot >= 0) {
            continue;
        }
        const int slot = pool->take(class_of(id));
        if (slot < 0) {
            continue; // the other class may have room
        }
        occupy(id, slot);
        for (int i = 0; i < n_parts(id); i++) {
            enqueue(id, i, sometime);
        }
    }
    wake_workers();
}

// Page cache only: whether the unit is still in it. Asked at growing distances
// while it is.
void expert_cache::look_again(int id) {
    auto & one = units[id];
    if (one.reading > 0 || (one.slot >= 0 && n_graphs < one.check_at)) {
        return;
    }
    const auto & layer = shape.layers[shape.layer_of(id)];
    const int expert = shape.expert_of(id);
    bool there = true;
    for (int index : layer.matrices) {
        const auto & matrix = shape.matrices[index];
        there = there &&
                files[matrix.file]->in_memory(
                    matrix.mapped + matrix.slice_bytes * (uint64_t) expert, matrix.slice_bytes);
    }
    if (!there) {
        one.check_after = 0;
        if (one.slot >= 0) {
            evict(id);
        }
        return;
    }
    if (one.slot < 0) {
        occupy(id, 0);
        for (int i = 0; i < (int) layer.matrices.size(); i++) {
            const auto & matrix = shape.matrices[layer.matrices[i]];
            part_of(id, i).is = state::ready;
            pointer(layer.matrices[i], expert)
                .store(matrix.mapped + matrix.slice_bytes * (uint64_t) expert);
        }
    }
    one.check_after = std::min(64u, std::max(1u, one.check_after * 2));
    one.check_at = n_graphs + one.check_after;
}

bool expert_cache::take_chunk(chunk & out) {
    for (auto & queue : queues) {
        while (!queue.empty()) {
            const job next = queue.front();
            auto & one = units[next.unit];
            auto & wanted = part_of(next.unit, next.part);
            const bool open = one.serial == next.serial && one.slot >= 0 &&
                              (wanted.is == state::queued || wanted.is == state::reading) &&
                              wanted.next_chunk < wanted.n_chunks;
            if (!open) {
                queue.pop_front();
                continue;
            }
            const auto & matrix = matrix_of(next.unit, next.part);
            const int expert = shape.expert_of(next.unit);
            const uint64_t skip = options.chunk_bytes * (uint64_t) wanted.next_chunk;
            out.unit = next.unit;
            out.part = next.part;
            out.file = files[matrix.file].get();
            out.offset = matrix.first_page(expert) + skip;
            out.bytes = std::min(options.chunk_bytes, matrix.end_page(expert) - out.offset);
            out.must =
                std::min(out.offset + out.bytes, matrix.slice_offset(expert) + matrix.slice_bytes) -
                out.offset;
            out.to = mapped()
                         ? nullptr
                         : pool->address(class_of(next.unit), one.slot) + matrix.part_at + skip;
            wanted.is = state::reading;
            wanted.next_chunk++;
            one.reading++;
            if (reads++ == 0) {
                reading_since = std::chrono::steady_clock::now();
            }
            if (wanted.next_chunk == wanted.n_chunks) {
                queue.pop_front();
            }
            return true;
        }
    }
    return false;
}

void expert_cache::give_chunk(const chunk & done, bool ok, const expert_read_error & error) {
    auto & one = units[done.unit];
    auto & wanted = part_of(done.unit, done.part);
    one.reading--;
    if (--reads == 0) {
        counts.read_ns += ns_since(reading_since);
    }
    if (!ok) {
        wanted.is = state::failed;
        latest_failure = error.text;
        counts.failed_reads++;
    } else {
        counts.read_bytes += done.must;
        wanted.done_chunks++;
        if (wanted.is == state::reading && wanted.done_chunks == wanted.n_chunks) {
            const auto & matrix = matrix_of(done.unit, done.part);
            const int expert = shape.expert_of(done.unit);
            const int index = shape.layers[matrix.layer].matrices[done.part];
            wanted.is = state::ready;
            pointer(index, expert)
                .store(mapped() ? matrix.mapped + matrix.slice_bytes * (uint64_t) expert
                                : pool->address(class_of(done.unit), one.slot) + matrix.part_at +
                                      (matrix.slice_offset(expert) - matrix.first_page(expert)),
                       std::memory_order_seq_cst);
        }
    }
    if (pending) {
        admit();
        wake_workers();
    }
    if (waiting > 0) {
        something_read.notify_all();
    }
}

void expert_cache::work() {
    std::unique_ptr<char, decltype(&std::free)> scratch(nullptr, std::free);
    if (mapped()) {
        scratch.reset((char *) std::aligned_alloc(expert_page, options.chunk_bytes));
    }
    lock guard(mutex);
    while (!stop) {
        chunk next;
        if (!take_chunk(next)) {
            idle++;
            work_wanted.wait(guard);
            idle--;
            continue;
        }
        guard.unlock();
        expert_read_error error;
        const bool ok =
            next.file->unchanged(error) &&
            (next.to ? next.file->read(next.to, next.offset, next.bytes, next.must, error)
                     : next.file->warm(scratch.get(), next.offset, next.bytes, next.must, error));
        guard.lock();
        give_chunk(next, ok, error);
    }
}

} // namespace llama_ai
