#include "expert_rivals.h"

#include "expert_policy.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <stdexcept>

namespace llama_ai {

namespace {

class ours : public replay_policy {
public:
    ours(const expert_trace & trace, const expert_policy_options & options)
        : policy(trace.n_layer, trace.n_expert, options) {}
    void used(const expert_routing & routing, size_t) override {
        policy.used(routing);
    }
    void loaded(int unit) override {
        policy.loaded(unit);
    }
    void evicted(int unit) override {
        policy.evicted(unit);
    }
    int victim(const std::function<bool(int)> & evictable) override {
        return policy.victim(evictable);
    }
    double half_life_tokens() const override {
        return policy.half_life_tokens();
    }

private:
    expert_policy policy;
};

// A number for each unit; the lowest goes.
class scored : public replay_policy {
public:
    explicit scored(int n_units) : scores(n_units), queue(n_units) {}
    void used(const expert_routing &, size_t) override {}
    void loaded(int unit) override {
        queue.add(unit, scores[unit]);
    }
    void evicted(int unit) override {
        queue.remove(unit);
    }
    int victim(const std::function<bool(int)> & evictable) override {
        return queue.pick(scores, evictable);
    }

protected:
    std::vector<double> scores;
    expert_queue queue;
};

class lru : public scored {
public:
    using scored::scored;
    void touched(int unit, size_t position) override {
        scores[unit] = (double) position;
    }
};

class lfu : public scored {
public:
    using scored::scored;
    void touched(int unit, size_t) override {
        scores[unit]++;
    }
};

// A hot list that knows the whole trace beforehand: better than any that is learned.
class hot_list : public scored {
public:
    hot_list(int n_units, const std::vector<std::vector<int>> & wanted) : scored(n_units) {
        for (const auto & units : wanted) {
            for (const int unit : units) {
                scores[unit]++;
            }
        }
    }
};

// The optimum: goes what is wanted again last.
class belady : public replay_policy {
public:
    belady(int n_units, const std::vector<std::vector<int>> & wanted) : next(n_units, never) {
        size_t count = 0;
        for (const auto & units : wanted) {
            count += units.size();
        }
        following.resize(count);
        std::vector<size_t> last(n_units, never);
        for (size_t i = wanted.size(); i-- > 0;) {
            for (size_t k = wanted[i].size(); k-- > 0;) {
                following[--count] = last[wanted[i][k]];
                last[wanted[i][k]] = count;
            }
        }
    }
    void used(const expert_routing &, size_t) override {}
    void touched(int unit, size_t position) override {
        next[unit] = following[position];
    }
    void loaded(int unit) override {
        resident.push_back(unit);
    }
    void evicted(int unit) override {
        resident.erase(std::find(resident.begin(), resident.end(), unit));
    }
    int victim(const std::function<bool(int)> & evictable) override {
        int found = -1;
        for (const int unit : resident) {
            if ((found < 0 || next[unit] > next[found]) && evictable(unit)) {
                found = unit;
            }
        }
        return found;
    }

private:
    static constexpr size_t never = std::numeric_limits<size_t>::max();
    std::vector<size_t> following, next;
    std::vector<int> resident;
};

// A hand goes round; a unit that was used since the hand's last visit is spared once.
class clock_hand : public replay_policy {
public:
    explicit clock_hand(int n_units) : referenced(n_units) {}
    void used(const expert_routing &, size_t) override {}
    void touched(int unit, size_t) override {
        referenced[unit] = true;
    }
    void loaded(int unit) override {
        ring.push_back(unit);
    }
    void evicted(int unit) override {
        ring.remove(unit);
    }
    int victim(const std::function<bool(int)> & evictable) override {
        for (size_t turns = 2 * ring.size(); turns > 0; turns--) {
            const int unit = ring.front();
            if (evictable(unit) && !referenced[unit]) {
                return unit;
            }
            if (evictable(unit)) {
                referenced[unit] = false;
            }
            ring.splice(ring.end(), ring, ring.begin());
        }
        return -1;
    }

private:
    std::vector<bool> referenced;
    std::list<int> ring; // the hand is at the front
};

// How Linux keeps the pages of a mapped file (mm/vmscan.c, mm/workingset.c): an inactive and an
// active list. What is found used twice on the inactive list moves to the active one; the active
// list gives its oldest back when it is the longer one; what is read again soon after it was
// dropped, sooner than the active list is long, is active at once. All pages of a unit share a fate
// here.
class pages : public replay_policy {
public:
    // `read`: by read() before it is mapped, which counts as one use more than a page fault.
    pages(int n_units, bool read) : state(n_units), read(read) {}
    void used(const expert_routing &, size_t) override {}
    void touched(int unit, size_t) override {
        state[unit].used++;
    }
    void loaded(int unit) override {
        auto & one = state[unit];
        one.used = read;
        one.active = one.dropped_at >= 0 && dropped - one.dropped_at <= (int64_t) active.size();
        auto & list = one.active ? active : inactive;
        one.at = list.insert(list.end(), unit);
    }
    void evicted(int unit) override {
        auto & one = state[unit];
        (one.active ? active : inactive).erase(one.at);
        one.dropped_at = dropped++;
    }
    void cold(int unit) override {
        auto & one = state[unit];
        (one.active ? active : inactive).erase(one.at);
        one.active = false;
        one.used = 0;
        one.at = inactive.insert(inactive.begin(), unit);
    }
    int victim(const std::function<bool(int)> & evictable) override {
        // Each pass spares a unit at most twice.
        for (size_t turns = 4 * (active.size() + inactive.size()) + 4; turns > 0; turns--) {
            if (active.size() > inactive.size()) {
                move(active.front(), false);
            }
            const int unit = inactive.front();
            auto & one = state[unit];
            if (!evictable(unit)) {
                inactive.splice(inactive.end(), inactive, one.at);
            } else if (one.used >= 2) {
                move(unit, true);
            } else if (one.used == 1 && !one.spared) {
                one.spared = true;
                inactive.splice(inactive.end(), inactive, one.at);
            } else {
                one.spared = false;
                return unit;
            }
        }
        // All of the inactive list is in use.
        for (const int unit : active) {
            if (evictable(unit)) {
                return unit;
            }
        }
        return -1;
    }

private:
    struct page {
        bool active = false;
        bool spared = false;
        int used = 0; // since it came to its list
        int64_t dropped_at = -1;
        std::list<int>::iterator at;
    };
    void move(int unit, bool to_active) {
        auto & one = state[unit];
        auto & from = one.active ? active : inactive;
        auto & to = to_active ? active : inactive;
        to.splice(to.end(), from, one.at);
        one.active = to_active;
        one.used = 0;
        one.spared = false;
    }

    std::vector<page> state;
    const bool read;
    std::list<int> inactive, active; // oldest first
    int64_t dropped = 0;
};

} // namespace

std::vector<std::vector<int>> wanted_units(const expert_trace & trace) {
    std::vector<std::vector<int>> result;
    result.reserve(trace.records.size());
    for (const auto & record : trace.records) {
        std::vector<int> units(record.ids.begin(), record.ids.end());
        std::sort(units.begin(), units.end());
        units.erase(std::unique(units.begin(), units.end()), units.end());
        for (auto & unit : units) {
            unit += record.layer * trace.n_expert;
        }
        result.push_back(std::move(units));
    }
    return result;
}

std::unique_ptr<replay_policy> make_policy(const std::string & name, const expert_trace & trace,
                                           const std::vector<std::vector<int>> & wanted,
                                           int budget_units,
                                           const std::vector<double> & half_lives_tokens) {
    const int n_units = trace.n_layer * trace.n_expert;
    if (name == "ours") {
        expert_policy_options options;
        options.budget_units = budget_units;
        if (!half_lives_tokens.empty()) {
            options.half_lives_tokens = half_lives_tokens;
        }
        return std::make_unique<ours>(trace, options);
    }
    if (name == "lru") {
        return std::make_unique<lru>(n_units);
    }
    if (name == "lfu") {
        return std::make_unique<lfu>(n_units);
    }
    if (name == "static") {
        return std::make_unique<hot_list>(n_units, wanted);
    }
    if (name == "clock") {
        return std::make_unique<clock_hand>(n_units);
    }
    if (name == "belady") {
        return std::make_unique<belady>(n_units, wanted);
    }
    if (name == "mmap" || name == "pr2101") {
        return std::make_unique<pages>(n_units, name == "pr2101");
    }
    throw std::invalid_argument("no policy '" + name + "'");
}

} // namespace llama_ai
