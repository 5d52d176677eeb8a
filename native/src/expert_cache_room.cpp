// Of expert_cache: who has memory, who may go.

#include "expert_cache.h"

#include <algorithm>

namespace llama_ai {

bool expert_cache::passed_by_all(int place) const {
    for (int i = 0; i < flow.n_threads; i++) {
        if (passed[i].at.load(std::memory_order_acquire) <= place) {
            return false;
        }
    }
    return true;
}

bool expert_cache::reached_by_any(int place) const {
    for (int i = 0; i < flow.n_threads; i++) {
        if (passed[i].at.load(std::memory_order_seq_cst) >= place) {
            return true;
        }
    }
    return false;
}

// Nobody reads from it or writes to it.
bool expert_cache::evictable(int id) const {
    const auto & one = units[id];
    if (one.slot < 0 || one.reading > 0) {
        return false;
    }
    return !flow.active || one.op != flow.op || passed_by_all(flow.place[shape.expert_of(id)]);
}

// And nobody is about to: the layer that is being computed will use it for its
// other matrices, and what was read ahead has a use to come.
bool expert_cache::dispensable(int id) const {
    const auto & one = units[id];
    return evictable(id) && (!flow.active || one.visit != flow.visit) && one.ahead < flow.visit;
}

void expert_cache::evict(int id) {
    auto & one = units[id];
    const auto & layer = shape.layers[shape.layer_of(id)];
    for (int i = 0; i < (int) layer.matrices.size(); i++) {
        pointer(layer.matrices[i], shape.expert_of(id)).store(nullptr, std::memory_order_seq_cst);
        part_of(id, i) = part();
    }
    if (!mapped()) {
        pool->give_back(layer.size_class, one.slot);
        policy.evicted(id);
    }
    if (one.streamed) {
        n_streamed[layer.size_class]--;
    }
    one.slot = -1;
    one.serial++;
    one.streamed = one.guessed = false;
    one.ahead = 0;
    counts.evictions++;
    counts.resident_units--;
    counts.resident_bytes -= layer.unit_bytes;
}

// With fewer slots than the operation needs, everything can be held by experts
// that are still to come. One that no thread has reached can give its slot to
// one that they wait for. A thread says where it is and then looks at the
// pointer; here the pointer goes and then we look where the threads are; so one
// of the two sees the other.
bool expert_cache::evict_unreached(int size_class) {
    for (size_t i = flow.experts.size(); i-- > flow.next + 1;) {
        const int expert = flow.experts[i];
        const int id = shape.unit(flow.layer, expert);
        if (units[id].slot < 0 || units[id].reading > 0 || class_of(id) != size_class) {
            continue;
        }
        auto & where = pointer(flow.matrix, expert);
        const char * before = where.exchange(nullptr, std::memory_order_seq_cst);
        if (reached_by_any((int) i)) {
            where.store(before, std::memory_order_seq_cst);
            return false; // and so is everything below
        }
        evict(id);
        return true;
    }
    return false;
}

// A prompt passes through this many slots, so that it does not push out what
// the conversation uses: two layers, if that leaves half of the memory, and one
// if that fits at all.
int expert_cache::stream_slots(int size_class) const {
    const int all = pool->n_slots(size_class);
    return std::max(std::min(2 * shape.n_expert, all / 2), std::min(shape.n_expert, all));
}

template <typename Predicate>
int expert_cache::oldest_streamed(int size_class, Predicate && wanted) {
    auto & queue = streamed[size_class];
    for (size_t i = 0; i < queue.size();) {
        const job entry = queue[i];
        const auto & one = units[entry.unit];
        if (one.serial != entry.serial || !one.streamed) {
            queue.erase(queue.begin() + (long) i);
            continue;
        }
        if (wanted(entry.unit)) {
            return entry.unit;
        }
        i++;
    }
    return -1;
}

template <typename Predicate>
int expert_cache::least_used(int size_class, Predicate && wanted) {
    return policy.victim([&](int id) { return class_of(id) == size_class && wanted(id); });
}

// What was read for a prompt: it is the first to go, unless there is room
// beyond what a prompt may pass through.
void expert_cache::mark_streamed(int id) {
    auto & one = units[id];
    const int size_class = class_of(id);
    if (mapped() || one.streamed || n_streamed[size_class] >= stream_slots(size_class)) {
        return;
    }
    one.streamed = true;
    n_streamed[size_class]++;
    streamed[size_class].push_back({id, 0, one.serial});
}

void expert_cache::settle_layer(int layer) {
    for (int expert = 0; expert < shape.n_experts_of(layer) && !mapped(); expert++) {
        const int id = shape.unit(layer, expert);
        if (units[id].slot >= 0 && !units[id].streamed) {
            settled[class_of(id)].push({policy.score(id), id});
        }
    }
}

// A unit that only passes through, but is used more than one that stays: they
// change roles. Only units of layers that this graph has passed can be
// compared: the others lack its uses still.
void expert_cache::exchange(int id) {
    auto & queue = settled[class_of(id)];
    while (!queue.empty()) {
        const int other = queue.top().second;
        if (units[other].slot < 0 || units[other].streamed) {
            queue.pop();
            continue;
        }
        if (policy.score(id) > queue.top().first) {
            queue.pop();
            units[id].streamed = false;
            n_streamed[class_of(id)]--;
            mark_streamed(other);
        }
        return;
    }
}

int expert_cache::find_slot(int id, bool streaming, bool must) {
    if (mapped()) {
        return 0;
    }
    const int size_class = class_of(id);
    const int free = pool->take(size_class);
    if (free >= 0) {
        return free;
    }
    const auto can_go = [this](int other) { return evictable(other); };
    const auto may_go = [this](int other) { return dispensable(other); };
    int victim = -1;
    if (streaming) {
        if (n_streamed[size_class] < stream_slots(size_class)) {
            victim = least_used(size_class, may_go);
        }
        if (victim < 0) {
            victim = oldest_streamed(size_class, may_go);
        }
        if (victim < 0 && must) {
            victim = oldest_streamed(size_class, can_go);
        }
    } else {
        victim = least_used(size_class, may_go);
    }
    if (victim < 0 && must) {
        victim = least_used(size_class, can_go);
    }
    if (victim >= 0) {
        evict(victim);
    } else if (!must || !evict_unreached(size_class)) {
        return -1;
    }
    return pool->take(size_class);
}

void expert_cache::occupy(int id, int slot) {
    units[id].slot = slot;
    counts.resident_units++;
    counts.resident_bytes += shape.layers[shape.layer_of(id)].unit_bytes;
    if (!mapped()) {
        policy.loaded(id);
    }
}

void expert_cache::shrink(uint64_t budget_bytes) {
    lock guard(mutex);
    if (mapped()) {
        return;
    }
    const auto slots = shape.slots_for(budget_bytes);
    for (int id = 0; id < (int) units.size(); id++) {
        if (units[id].slot < 0 || units[id].slot < slots[class_of(id)]) {
            continue;
        }
        while (units[id].reading > 0) {
            waiting++;
            something_read.wait(guard);
            waiting--;
        }
        evict(id);
    }
    for (int i = 0; i < pool->n_classes(); i++) {
        pool->shrink(i, slots[i]);
    }
}

} // namespace llama_ai
