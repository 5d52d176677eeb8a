// What upstream's KV memory asks us while it writes or reads the state of one sequence.
//
// Upstream writes a sequence's state as a whole. We store a conversation in segments, each of them
// the attention cells of some positions, and the state that cannot be cut by position (recurrent
// state, sliding windows) apart. A sliding window is stored with the places of its cells, so that
// what is computed from it later is the same to the last bit. So a thread that is about to call
// llama_state_seq_*_ext says in kv_wish what it wants; without a wish upstream does what it always
// does.
#pragma once

#include <cstdint>
#include <vector>

namespace llama_ai {

struct kv_wish {
    enum { nothing, segment, window } what = nothing;

    // A segment: only attention cells, and only those of the positions [begin, end).
    int32_t begin = 0;
    int32_t end = 0;
    // Sliding-window caches have kept every cell (--swa-full) and are cut by position as well;
    // otherwise a segment leaves them out.
    bool whole_windows = false;

    // A window: all its cells, those too that the next token will not see. Where they lie, in the
    // order in which they are written, and where the cache looks for room next; filled by writing,
    // used by reading.
    std::vector<uint32_t> places;
    uint32_t head = 0;
};

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
inline thread_local kv_wish current_kv_wish;

// While a sequence is written: is the cell at `place` part of the state? `keep` is upstream's
// answer, `pos` the cell's position, `windowed` whether its cache has a sliding window. Not called
// for cells of other sequences.
inline bool kv_keep_cell(bool keep, int32_t pos, bool windowed, uint32_t place, uint32_t head) {
    kv_wish & wish = current_kv_wish;
    if (wish.what == kv_wish::segment) {
        return (!windowed || wish.whole_windows) && pos >= wish.begin && pos < wish.end;
    }
    if (wish.what == kv_wish::window && windowed) {
        wish.places.push_back(place);
        wish.head = head;
        return true;
    }
    return keep;
}

// While a sequence is read: is its state the next segment of what the sequence already holds, which
// therefore has to stay?
inline bool kv_appending() {
    return current_kv_wish.what == kv_wish::segment;
}

// The places that were found for a sequence's cells: put those there that it had, if they are free.
template <typename Cells>
void kv_choose_places(std::vector<uint32_t> & found, const Cells & cells, bool windowed) {
    const kv_wish & wish = current_kv_wish;
    if (wish.what != kv_wish::window || !windowed || wish.places.size() != found.size()) {
        return;
    }
    for (const uint32_t place : wish.places) {
        if (place >= cells.size() || !cells.is_empty(place)) {
            return;
        }
    }
    found = wish.places;
}

// Where the cache looks for room after that.
inline uint32_t kv_choose_head(uint32_t head, uint32_t size, bool windowed) {
    const kv_wish & wish = current_kv_wish;
    return wish.what == kv_wish::window && windowed && wish.head <= size ? wish.head : head;
}

// Recurrent state is no part of a segment.
inline bool kv_without_recurrent() {
    return current_kv_wish.what == kv_wish::segment;
}

} // namespace llama_ai
