#include "expert_tracking.h"

#include "expert_trace.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace llama_ai {

namespace {

class tracking {
public:
    tracking(const expert_tracking_options & options, const expert_shape & shape,
             const std::string & model)
        : options(options), model(model) {
        stats = std::make_shared<expert_stats>(shape);
        stats->set_enabled(options.enabled);
        if (!options.trace_file.empty()) {
            trace = std::make_unique<expert_trace_writer>(options.trace_file, shape.n_layer,
                                                          shape.n_expert, shape.n_used, model);
        }
        if (!options.stats_file.empty()) {
            load();
        }
        thread = std::thread(&tracking::run, this);
    }

    ~tracking() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;
        }
        wake.notify_one();
        thread.join();
        save();
    }

    std::shared_ptr<expert_stats> stats;
    std::unique_ptr<expert_trace_writer> trace;

private:
    void load() {
        std::string why;
        switch (stats->load(options.stats_file, model, why)) {
        case expert_load::damaged:
            options.warn("expert statistics: " + options.stats_file + ".damaged: " + why +
                         "; starting anew");
            break;
        case expert_load::other_model:
            options.warn("expert statistics: " + options.stats_file + ": " + why +
                         "; starting anew");
            break;
        case expert_load::loaded:
        case expert_load::missing:
            break;
        }
    }

    void save() {
        if (options.stats_file.empty()) {
            return;
        }
        try {
            stats->save(options.stats_file, model);
            save_failed = false;
        } catch (const std::exception & error) {
            if (!save_failed) {
                options.warn(std::string("expert statistics are not kept: ") + error.what());
            }
            save_failed = true;
        }
    }

    void run() {
        std::unique_lock<std::mutex> lock(mutex);
        auto saved = std::chrono::steady_clock::now();
        while (!wake.wait_for(lock, std::chrono::seconds(1), [&] { return stop; })) {
            lock.unlock();
            if (trace && !trace_failed && !trace->error().empty()) {
                trace_failed = true;
                options.warn("expert trace " + options.trace_file + ": " + trace->error() +
                             "; nothing more is recorded");
            }
            const auto now = std::chrono::steady_clock::now();
            if (now - saved >= std::chrono::seconds(options.save_every_s)) {
                saved = now;
                save();
            }
            lock.lock();
        }
    }

    const expert_tracking_options options;
    const std::string model;
    bool save_failed = false, trace_failed = false;
    std::mutex mutex;
    std::condition_variable wake;
    bool stop = false;
    std::thread thread; // the last member: it uses all the others
};

} // namespace

// `guard` is for start and stop against the HTTP threads. The thread that computes reads `running`
// alone: it is null while nothing may compute.
static std::mutex guard;
static std::unique_ptr<tracking> owner;
static std::atomic<tracking *> running{nullptr};

void expert_tracking_start(const expert_tracking_options & options, const expert_shape & shape,
                           const std::string & model) {
    expert_tracking_stop();
    auto made = std::make_unique<tracking>(options, shape, model);
    std::lock_guard<std::mutex> lock(guard);
    owner = std::move(made);
    running.store(owner.get(), std::memory_order_release);
}

void expert_tracking_stop() {
    std::unique_ptr<tracking> ended;
    {
        std::lock_guard<std::mutex> lock(guard);
        running.store(nullptr, std::memory_order_release);
        ended = std::move(owner);
    }
}

void expert_tracking_observe(const expert_routing & routing) {
    tracking * now = running.load(std::memory_order_acquire);
    if (now == nullptr || routing.is_warmup()) {
        return;
    }
    now->stats->count(routing);
    if (now->trace) {
        now->trace->add(routing);
    }
}

std::shared_ptr<expert_stats> expert_tracking_stats() {
    std::lock_guard<std::mutex> lock(guard);
    return owner ? owner->stats : nullptr;
}

static std::string error_body(int status, const std::string & message) {
    return nlohmann::json(
               {{"error",
                 {{"code", status},
                  {"message", message},
                  {"type", status == 400 ? "invalid_request_error" : "unavailable_error"}}}})
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

static std::string unavailable(int & status) {
    status = 503;
    return error_body(status, "no expert tracking: the model has no experts, is not loaded, or "
                              "the server runs without --expert-tracking");
}

std::string expert_stats_response(int & status) {
    const auto stats = expert_tracking_stats();
    if (!stats) {
        return unavailable(status);
    }
    status = 200;
    return stats->json();
}

std::string expert_tracking_response(const std::string & body, int & status) {
    const auto request = nlohmann::json::parse(body.empty() ? "{}" : body, nullptr, false);
    bool understood = request.is_object();
    if (understood) {
        for (const auto & [key, value] : request.items()) {
            understood = understood && (key == "enabled" || key == "reset") && value.is_boolean();
        }
    }
    if (!understood) {
        status = 400;
        return error_body(status, R"(expected {"enabled": true or false, "reset": true or false})");
    }
    const auto stats = expert_tracking_stats();
    if (!stats) {
        return unavailable(status);
    }
    if (request.value("reset", false)) {
        stats->reset();
    }
    if (request.contains("enabled")) {
        stats->set_enabled(request["enabled"].get<bool>());
    }
    status = 200;
    return nlohmann::json(
               {{"tracking_enabled", stats->enabled()}, {"reset", request.value("reset", false)}})
        .dump();
}

} // namespace llama_ai
