#include "expert_ahead.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <pthread.h>

namespace llama_ai {

// A guess that is wrong costs the disk as much time as a right one saves.
static const float worth_reading = 0.6f;

expert_ahead::expert_ahead(expert_cache & cache, expert_early_router router)
    : cache(cache), router(std::move(router)), score((int) cache.layout().layers.size()) {
    sigset_t all, before; // signals are the server's business
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    thread = std::thread([this] { work(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

expert_ahead::~expert_ahead() {
    {
        std::lock_guard<std::mutex> guard(mutex);
        stop = true;
    }
    wake.notify_one();
    thread.join();
}

void expert_ahead::chosen(const expert_routing & routing, const float * values, int n_embd) {
    if (routing.n_tokens != 1 || routing.is_warmup()) {
        return;
    }
    {
        std::lock_guard<std::mutex> guard(mutex);
        layer = routing.layer;
        experts.assign(routing.ids, routing.ids + routing.n_used);
        input.assign(values, values + n_embd);
        waiting = true;
    }
    wake.notify_one();
}

void expert_ahead::work() {
    std::unique_lock<std::mutex> guard(mutex);
    std::vector<int32_t> chosen;
    std::vector<float> values;
    for (;;) {
        wake.wait(guard, [this] { return waiting || stop; });
        if (stop) {
            return;
        }
        waiting = false;
        const int here = layer;
        chosen.swap(experts);
        values.swap(input);
        guard.unlock();
        if (here == guessed_layer) {
            score.settle(here, guesses, chosen.data(), (int) chosen.size());
        }
        const int next = cache.layout().next_layer(here);
        guessed_layer = next;
        guesses.clear();
        if (next >= 0 && router.has_router(next)) {
            guesses = router.predict(next, values.data(), (int) chosen.size());
            guesses.erase(std::remove_if(guesses.begin(), guesses.end(),
                                         [&](const expert_guess & guess) {
                                             return cache.has(next, guess.expert);
                                         }),
                          guesses.end());
            score.rate(next, guesses);
            std::vector<int> wanted;
            for (const auto & guess : guesses) {
                // Until something is known of a place, try.
                if (guess.probability >= worth_reading || guess.probability == 0.5f) {
                    wanted.push_back(guess.expert);
                }
            }
            cache.read_ahead(next, wanted);
        }
        guard.lock();
    }
}

} // namespace llama_ai
