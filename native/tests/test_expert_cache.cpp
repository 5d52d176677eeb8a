// The expert cache as the CPU backend uses it: some threads walk the experts of one operation after
// the other, and what they are given must be what is in the file, whatever the budget.

#include "expert_cache_samples.h"

#include <atomic>
#include <thread>

using namespace llama_ai;

// One thread's part of an operation: every expert that has rows, in the cache's order.
static void walk(expert_cache & cache, const sample_model & model, int index,
                 const sample_routing & chosen, int thread, bool expect_zeros,
                 std::atomic<int> & wrong) {
    const auto & matrix = cache.layout().matrices[index];
    const int32_t * order = cache.order();
    for (int turn = 0; turn < matrix.n_expert; turn++) {
        const int expert = order ? order[turn] : turn;
        if (chosen.rows[expert] == 0) {
            continue;
        }
        const char * got = cache.slice(index, expert, thread);
        if (std::memcmp(got, model.content.data() + matrix.slice_offset(expert),
                        matrix.slice_bytes) != 0) {
            wrong++;
        } else if (thread == 1 && !expect_zeros) {
            // A slow thread: what it reads must not go away under its hands.
            std::this_thread::yield();
            if (std::memcmp(got, model.content.data() + matrix.slice_offset(expert),
                            matrix.slice_bytes) != 0) {
                wrong++;
            }
        }
    }
}

// A graph: all layers, each with its three matrices. True: it went well.
// The last `n_same` tokens choose experts 0, 1, ….
static bool compute(expert_cache & cache, const sample_model & model, int n_used, int n_tokens,
                    int n_threads, unsigned & seed, std::string * error = nullptr, int n_same = 0) {
    const auto & layout = cache.layout();
    std::atomic<int> wrong{0};
    for (int layer = 0; layer < (int) layout.layers.size(); layer++) {
        const sample_routing chosen(layer, layout.n_expert, n_used, n_tokens, seed, n_same);
        // Upstream's order: up, gate, down.
        for (const int part : {1, 0, 2}) {
            const int index = layout.layers[layer].matrices[part];
            cache.need(index, chosen.routing, n_threads);
            std::vector<std::thread> threads;
            for (int thread = 1; thread < n_threads; thread++) {
                threads.emplace_back([&, thread] {
                    walk(cache, model, index, chosen, thread, error != nullptr, wrong);
                });
            }
            walk(cache, model, index, chosen, 0, error != nullptr, wrong);
            for (auto & thread : threads) {
                thread.join();
            }
        }
    }
    std::string why;
    const bool good = cache.finish(why);
    CHECK(good == why.empty());
    if (good) {
        CHECK(wrong == 0);
    }
    if (error) {
        *error = why;
    }
    return good;
}

static void any_budget() {
    // Slices that are not whole pages, two sizes of units, several reads a slice.
    sample_model model(6, 12, 5 * 4096 + 544, 4 * 4096);
    const uint64_t whole = expert_layout(model.matrices).total_bytes;
    unsigned seed = 1;
    for (const double share : {0.0001, 0.02, 0.05, 0.1, 0.3, 0.7, 1.7}) {
        expert_cache_options options;
        options.budget_bytes = (uint64_t) (share * (double) whole);
        options.n_threads = 3;
        options.chunk_bytes = 8192;
        auto cache = model.cache(options);
        for (int i = 0; i < 6; i++) {
            CHECK(compute(*cache, model, 2, 1, 2, seed));  // a token
            CHECK(compute(*cache, model, 2, 40, 3, seed)); // a prompt
            CHECK(compute(*cache, model, 2, 4, 1, seed));  // four slots
            CHECK(compute(*cache, model, 12, 2, 2, seed)); // upstream's warm-up
        }
        const auto counts = cache->counters();
        const auto slots = cache->layout().slots_for(options.budget_bytes);
        CHECK(slots.size() == 2);
        CHECK(counts.resident_units <= (uint64_t) (slots[0] + slots[1]));
        CHECK(counts.tokens == 6 * (1 + 40 + 4 + 2));
        CHECK(counts.failed_reads == 0);
        if (share > 1.6) {
            CHECK(counts.evictions == 0); // slots are a little larger than what they hold
            // Whole pages are read: a part of one more a slice.
            CHECK(counts.read_bytes >= whole && counts.read_bytes < whole + 6 * 12 * 3 * 4096);
        } else {
            CHECK(counts.evictions > 0);
        }
    }
}

static void page_cache_copies_and_mapping() {
    sample_model model(4, 8, 3 * 4096, 0, 8192);
    unsigned seed = 2;
    for (const uint64_t budget : {uint64_t(0), uint64_t(600000)}) {
        for (const bool cold : {true, false}) {
            expert_cache_options options;
            options.budget_bytes = budget;
            options.n_threads = 2;
            auto cache = model.cache(options, true);
            for (int i = 0; i < 10; i++) {
                if (cold) {
                    model.forget_pages();
                }
                CHECK(compute(*cache, model, 2, 1, 2, seed));
                CHECK(compute(*cache, model, 2, 24, 2, seed));
            }
            CHECK(cache->counters().hits > 0);
        }
    }
}

static void frequent_ones_stay() {
    // One expert a layer is used by every token, the others in turn: it must be found nearly
    // always.
    sample_model model(4, 16, 4096, 0, 4096);
    expert_cache_options options;
    options.budget_bytes = 4 * 3 * 3 * 4096; // three of sixteen
    auto cache = model.cache(options);
    for (int token = 0; token < 64; token++) {
        for (int layer = 0; layer < 4; layer++) {
            unsigned seed = 0;
            sample_routing chosen(layer, 16, 2, 1, seed);
            chosen.ids = {0, 1 + token % 15};
            std::fill(chosen.rows.begin(), chosen.rows.end(), 0);
            chosen.rows[0] = chosen.rows[1 + token % 15] = 1;
            chosen.routing.ids = chosen.ids.data();
            for (const int index : cache->layout().layers[layer].matrices) {
                cache->need(index, chosen.routing, 1);
                cache->slice(index, 0, 0);
                cache->slice(index, 1 + token % 15, 0);
            }
        }
        std::string error;
        CHECK(cache->finish(error));
    }
    const auto counts = cache->counters();
    CHECK(counts.hits + counts.misses == 64 * 4 * 2);
    CHECK(counts.hits >= 62 * 4);
}

static void a_prompt_does_not_push_out_the_rest() {
    sample_model model(8, 8, 4096, 0, 4096);
    expert_cache_options options;
    options.budget_bytes = 40 * 3 * 4096; // of 64 units; a prompt may pass through 16
    auto cache = model.cache(options);
    unsigned seed = 3;
    // A conversation that uses experts 0 and 1 of each layer, as the ends of the prompts do.
    const auto turn = [&] { CHECK(compute(*cache, model, 2, 1, 1, seed, nullptr, 1)); };
    for (int i = 0; i < 20; i++) {
        turn();
    }
    for (int i = 0; i < 3; i++) {
        CHECK(compute(*cache, model, 2, 64, 2, seed, nullptr, 8));
    }
    CHECK(cache->counters().misses > 3 * 8);
    const auto before = cache->counters();
    turn();
    CHECK(cache->counters().misses == before.misses);
}

static void read_ahead_and_prewarm() {
    sample_model model(3, 8, 4096, 0, 4096);
    expert_cache_options options;
    options.budget_bytes = 1 << 20;
    auto cache = model.cache(options);
    std::vector<double> rates(3 * 8);
    rates[8 + 3] = 0.5;
    cache->seed(rates);
    cache->prewarm(rates);
    cache->read_ahead(2, {4, 5});
    while (cache->counters().read_bytes < 24 * 3 * 4096u) { // room for all: all are read
        std::this_thread::yield();
    }
    unsigned seed = 4;
    CHECK(compute(*cache, model, 2, 1, 2, seed));
    CHECK(cache->counters().misses == 0);

    options.budget_bytes = 6 * 3 * 4096;
    cache = model.cache(options);
    cache->prewarm(rates);
    cache->read_ahead(2, {4, 5});
    while (cache->counters().read_bytes < 3 * 3 * 4096u) {
        std::this_thread::yield();
    }
    CHECK(cache->counters().resident_units == 3);
    CHECK(cache->counters().predicted == 2);
    sample_routing chosen(2, 8, 2, 1, seed);
    chosen.ids = {4, 6};
    chosen.rows = {0, 0, 0, 0, 1, 0, 1, 0};
    chosen.routing.ids = chosen.ids.data();
    chosen.routing.rows = chosen.rows.data();
    cache->need(cache->layout().layers[2].matrices[0], chosen.routing, 1);
    CHECK(cache->counters().predicted_used == 1);
    CHECK(cache->counters().hits == 1);
}

static void shrinking() {
    sample_model model(4, 8, 4096, 0, 4096);
    expert_cache_options options;
    options.budget_bytes = 1 << 20;
    auto cache = model.cache(options);
    cache->prewarm({});
    unsigned seed = 5;
    CHECK(compute(*cache, model, 2, 30, 2, seed));
    cache->shrink(4 * 3 * 4096);
    CHECK(cache->memory_bytes() == 4 * 3 * 4096);
    CHECK(cache->counters().resident_units <= 4);
    CHECK(compute(*cache, model, 2, 30, 2, seed));
}

static void faults() {
    for (const uint64_t budget : {uint64_t(0), uint64_t(8 * 3 * 4096)}) {
        sample_model model(4, 8, 4096, 0, 4096);
        expert_cache_options options;
        options.budget_bytes = budget;
        options.n_threads = 2;
        auto cache = model.cache(options);
        unsigned seed = 6;
        CHECK(compute(*cache, model, 2, 1, 2, seed));

        // Cut short, then whole again. (What is mapped must not be touched meanwhile, so the page
        // cache is the kernel's problem only up to the file's end.)
        const off_t half = (off_t) model.content.size() / 2;
        CHECK(ftruncate(model.fd, half) == 0);
        std::string error;
        CHECK(!compute(*cache, model, 2, 20, 2, seed, &error));
        CHECK(error.find(model.path.substr(2)) != std::string::npos);
        CHECK(error.find("shorter") != std::string::npos);
        CHECK(pwrite(model.fd, model.content.data() + half, model.content.size() - half, half) ==
              (ssize_t) (model.content.size() - half));
        CHECK(compute(*cache, model, 2, 20, 2, seed));

        // Another model under the same name.
        CHECK(pwrite(model.fd, "GARBAGE", 7, 0) == 7);
        CHECK(!compute(*cache, model, 2, 20, 2, seed, &error));
        CHECK(error.find("was changed") != std::string::npos);
        CHECK(pwrite(model.fd, model.content.data(), 7, 0) == 7);
        CHECK(compute(*cache, model, 2, 20, 2, seed));
    }
}

static void ends_while_reading() {
    sample_model model(8, 16, 16 * 4096, 0, 4096);
    for (int i = 0; i < 20; i++) {
        expert_cache_options options;
        options.budget_bytes = 16 << 20;
        options.n_threads = 1 + i % 4;
        auto cache = model.cache(options);
        cache->prewarm({});
    }
}

int main() {
    any_budget();
    page_cache_copies_and_mapping();
    frequent_ones_stay();
    a_prompt_does_not_push_out_the_rest();
    read_ahead_and_prewarm();
    shrinking();
    faults();
    ends_while_reading();
    return 0;
}
