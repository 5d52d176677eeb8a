#include "check.h"
#include "expert_samples.h"
#include "expert_stats.h"
#include "expert_tracking.h"

#include <nlohmann/json.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

using namespace llama_ai;
using nlohmann::json;

static std::string dir;

static void use(expert_stats & stats, int layer, std::vector<int32_t> experts, int n_tokens = 1) {
    sample_routing one(layer, stats.shape().n_expert, n_tokens, std::move(experts));
    stats.count(one.routing);
}

static std::string read(const std::string & path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

static void write(const std::string & path, const std::string & text) {
    std::ofstream(path, std::ios::trunc) << text;
}

static bool exists(const std::string & path) {
    return access(path.c_str(), F_OK) == 0;
}

static void counts() {
    expert_stats stats({4, 16, 2});
    CHECK(json::parse(stats.json())["layers"].empty());
    for (const double rate : stats.rates()) {
        CHECK(rate == 0);
    }
    for (int i = 0; i < 10; i++) {
        use(stats, 1, {3, i});
        use(stats, 2, {4, 5, 4, 6}, 2);
    }
    const auto document = json::parse(stats.json());
    CHECK(document["n_expert"] == 16 && document["n_expert_used"] == 2);
    CHECK(document["total_tokens"] == 20 && document["tracking_enabled"] == true);
    CHECK(document["layers"].size() == 2);
    const auto & one = document["layers"][0];
    CHECK(one["layer"] == 1 && one["tokens"] == 10);
    CHECK(one["activations"].size() == 10);
    CHECK(one["activations"][0]["expert"] == 3 && one["activations"][0]["count"] == 11);
    CHECK(one["activations"][0]["frequency"] == 1.1);
    // Uses 11 and nine times 1 of 20.
    const double bits = -(11 / 20.0 * std::log2(11 / 20.0) + 9 / 20.0 * std::log2(1 / 20.0));
    CHECK(std::fabs(one["entropy_bits"].get<double>() - bits) < 1e-9);
    CHECK(std::fabs(one["recent_entropy_bits"].get<double>() - bits) < 0.01);
    CHECK(one["top_shares"][0]["experts"] == 1 && one["top_shares"][0]["share"] == 11 / 20.0);
    CHECK(one["top_shares"][3]["experts"] == 8 && one["top_shares"][3]["share"] == 18 / 20.0);
    const auto rates = stats.rates();
    CHECK(rates.size() == 64);
    CHECK(std::fabs(rates[2 * 16 + 4] - 1) < 1e-3 && std::fabs(rates[2 * 16 + 6] - 0.5) < 1e-3);
    CHECK(rates[0] == 0);
    CHECK(document["sample_every"] == 1);
    // What is out of range or warm-up changes nothing.
    const std::string before = stats.json();
    std::vector<int32_t> all(16);
    use(stats, 1, all);
    use(stats, 4, {1, 2});
    CHECK(stats.json() == before);
    sample_routing sampled(0, 16, 1, {1, 2});
    sampled.routing.sample_every = 16;
    stats.count(sampled.routing);
    CHECK(json::parse(stats.json())["sample_every"] == 16);
    stats.set_enabled(false);
    use(stats, 1, {1, 2});
    CHECK(json::parse(stats.json())["total_tokens"] == 20);
    CHECK(json::parse(stats.json())["tracking_enabled"] == false);
    stats.set_enabled(true);
    stats.reset();
    CHECK(json::parse(stats.json())["layers"].empty());
}

// Rates follow the last thousands of tokens; totals do not.
static void decay() {
    expert_stats_options options;
    options.half_life_tokens = 100;
    expert_stats stats({1, 8, 1}, options);
    for (int i = 0; i < 50000; i++) {
        use(stats, 0, {1});
    }
    for (int i = 0; i < 100; i++) {
        use(stats, 0, {2});
    }
    const auto rates = stats.rates();
    CHECK(std::fabs(rates[1] - 0.5) < 0.01 && std::fabs(rates[2] - 0.5) < 0.01);
    CHECK(json::parse(stats.json())["layers"][0]["activations"][0]["count"] == 50000);
}

static void persistence() {
    const std::string path = dir + "/expert-stats.json";
    std::string why;
    const expert_shape shape = {3, 64, 4};
    expert_stats stats(shape);
    CHECK(stats.load(path, "m", why) == expert_load::missing);
    CHECK(!stats.save(path, "m") && !exists(path)); // nothing to keep
    sample_numbers random(2);
    for (int i = 0; i < 3000; i++) {
        use(stats, i % 3, random.choice(4, 20));
    }
    CHECK(stats.save(path, "m") && !stats.save(path, "m"));
    CHECK(!exists(path + ".new"));
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);

    expert_stats again(shape);
    CHECK(again.load(path, "m", why) == expert_load::loaded);
    auto a = json::parse(stats.json()), b = json::parse(again.json());
    for (auto * document : {&a, &b}) {
        for (auto & layer : (*document)["layers"]) {
            layer.erase("recent_entropy_bits");
        }
    }
    CHECK(a == b);
    const auto rates = stats.rates(), loaded = again.rates();
    for (size_t i = 0; i < rates.size(); i++) {
        CHECK(std::fabs(rates[i] - loaded[i]) < 1e-9);
    }
    const int32_t chosen[] = {1, 2, 3, 4};
    const auto guess = stats.predict(0, chosen, 4, 5), reloaded = again.predict(0, chosen, 4, 5);
    CHECK(guess.size() == 5 && reloaded.size() == 5);
    for (size_t i = 0; i < 5; i++) {
        CHECK(guess[i].expert == reloaded[i].expert);
    }
    again.reset();
    CHECK(again.predict(0, chosen, 4, 5).empty());
    CHECK(again.load(path, "m", why) == expert_load::loaded && again.save(path, "m"));
    CHECK(!again.save(path, "m")); // what was loaded is not new
    use(again, 0, {1, 2, 3, 4});
    CHECK(again.save(path, "m"));

    // Another model or shape: untouched, replaced by the next save.
    const std::string kept = read(path);
    CHECK(expert_stats(shape).load(path, "other", why) == expert_load::other_model);
    CHECK(expert_stats({3, 64, 8}).load(path, "m", why) == expert_load::other_model);
    CHECK(read(path) == kept);

    // Damaged in any of these ways: set aside, nothing of it is used.
    const auto good = json::parse(kept);
    std::vector<std::string> bad = {
        "", "{", "[]", "null", kept.substr(0, kept.size() / 2), std::string(100, '\0')};
    const auto change = [&](const char * pointer, const json & value) {
        json copy = good;
        copy[json::json_pointer(pointer)] = value;
        bad.push_back(copy.dump());
    };
    change("/schema", "llama-ai.expert-stats/99");
    change("/layers/0/layer", 3);
    change("/layers/0/layer", -1);
    change("/layers/0/total/5", -1);
    change("/layers/0/total/5", 1.5);
    change("/layers/0/total", json::array({1, 2}));
    change("/layers/0/recent/5", "x");
    change("/layers/0/recent/5", 1e300);
    change("/layers/0/recent_tokens", nullptr);
    change("/layers/0/next", 0);
    change("/layers/0/next", 9);
    change("/layers/0/pairs/0/0", 64);
    change("/layers/0/pairs/0/1", 70000);
    change("/layers/0/pairs/0/2/0", 64);
    change("/layers/0/pairs/0/2/1", 5000);
    change("/layers/0/pairs/0/2", json::array({1}));
    change("/layers/1", 7);
    for (const auto & text : bad) {
        write(path, text);
        expert_stats fresh(shape);
        why.clear();
        CHECK(fresh.load(path, "m", why) == expert_load::damaged);
        CHECK(!why.empty() && why.find('\n') == std::string::npos);
        CHECK(!exists(path) && read(path + ".damaged") == text);
        CHECK(json::parse(fresh.json())["layers"].empty());
    }
    // A directory in the way cannot be replaced: an error, and no rest.
    CHECK(mkdir((dir + "/taken").c_str(), 0700) == 0);
    bool thrown = false;
    try {
        stats.reset();
        stats.save(dir + "/taken", "m");
    } catch (const std::system_error &) {
        thrown = true;
    }
    CHECK(thrown && !exists(dir + "/taken.new"));
}

// The HTTP threads look and switch while the computation counts.
static void threads() {
    expert_stats stats({2, 64, 4});
    std::atomic<bool> end{false};
    std::thread reader([&] {
        while (!end) {
            CHECK(json::accept(stats.json()));
            stats.rates();
            stats.reset();
            stats.save(dir + "/threads", "m");
        }
    });
    sample_numbers random(8);
    for (int i = 0; i < 20000; i++) {
        use(stats, i % 2, random.choice(4, 64));
    }
    end = true;
    reader.join();
}

static void tracking() {
    int status = 0;
    const sample_routing one(1, 8, 1, {2, 3});
    expert_tracking_observe(one.routing); // before the start: nothing
    CHECK(json::parse(expert_stats_response(status))["error"]["code"] == 503 && status == 503);
    CHECK(expert_tracking_response("{}", status).find("503") != std::string::npos);
    expert_tracking_stop();

    expert_tracking_options options;
    options.enabled = false;
    options.stats_file = dir + "/tracking.json";
    options.trace_file = dir + "/tracking.trace";
    std::vector<std::string> warnings;
    options.warn = [&](const std::string & text) { warnings.push_back(text); };
    write(options.stats_file, "garbage");
    expert_tracking_start(options, {3, 8, 2}, "m");
    CHECK(warnings.size() == 1 && warnings[0].find(options.stats_file) != std::string::npos);
    expert_tracking_observe(one.routing);
    CHECK(json::parse(expert_stats_response(status))["total_tokens"] == 0 && status == 200);
    for (const char * body : {"{", "[]", "7", R"({"enabled":1})", R"({"on":true})"}) {
        CHECK(json::parse(expert_tracking_response(body, status))["error"]["code"] == 400);
        CHECK(status == 400);
    }
    auto answer = json::parse(expert_tracking_response(R"({"enabled":true})", status));
    CHECK(status == 200 && answer["tracking_enabled"] == true && answer["reset"] == false);
    expert_tracking_observe(one.routing);
    CHECK(json::parse(expert_stats_response(status))["total_tokens"] == 1);
    answer = json::parse(expert_tracking_response(R"({"reset":true})", status));
    CHECK(answer["tracking_enabled"] == true && answer["reset"] == true);
    CHECK(json::parse(expert_stats_response(status))["total_tokens"] == 0);
    CHECK(json::parse(expert_tracking_response("", status))["tracking_enabled"] == true);
    expert_tracking_observe(one.routing);
    expert_tracking_stop();
    CHECK(!expert_tracking_stats());

    // The file was written at the end, and is there again at the next start.
    options.trace_file.clear();
    expert_tracking_start(options, {3, 8, 2}, "m");
    CHECK(json::parse(expert_stats_response(status))["total_tokens"] == 1);
    expert_tracking_start(options, {3, 8, 2}, "n"); // another model: said, not fatal
    CHECK(json::parse(expert_stats_response(status))["total_tokens"] == 0);
    expert_tracking_stop();
    CHECK(warnings.size() == 2);
    options.enabled = true;
    options.stats_file = dir + "/none/stats.json";
    expert_tracking_start(options, {3, 8, 2}, "m");
    expert_tracking_observe(one.routing);
    expert_tracking_stop();
    CHECK(warnings.size() == 3);
}

int main() {
    char name[] = "/tmp/llama-ai-stats-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    dir = name;
    counts();
    decay();
    persistence();
    threads();
    tracking();
    CHECK(std::system(("rm -r " + dir).c_str()) == 0);
    return 0;
}
