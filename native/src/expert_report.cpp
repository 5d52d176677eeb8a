#include "expert_residency.h"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace llama_ai {

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

std::string expert_residency_json() {
    const auto status = expert_status();
    const auto & now = status.counters;
    nlohmann::ordered_json json;
    json["enabled"] = status.enabled;
    if (!status.enabled) {
        return json.dump();
    }
    const double tokens = (double) now.tokens;
    const double read_s = (double) now.read_ns / 1e9, stall_s = (double) now.stall_ns / 1e9;
    const auto known = [](bool yes, double value) {
        return yes ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
    };
    json["models"] = status.models;
    json["experts"] = status.units;
    json["experts_bytes"] = status.total_bytes;
    json["budget_bytes"] = status.budget_bytes; // 0: the kernel decides
    json["memory_bytes"] = status.memory_bytes;
    json["resident_experts"] = now.resident_units;
    json["resident_bytes"] = now.resident_bytes;
    json["direct_io"] = status.direct;
    json["tokens"] = now.tokens;
    json["hits"] = now.hits;
    json["misses"] = now.misses;
    json["hit_rate"] = known(now.hits + now.misses > 0,
                             ratio((double) now.hits, (double) (now.hits + now.misses)));
    json["read_bytes"] = now.read_bytes;
    json["read_seconds"] = read_s;
    json["stall_seconds"] = stall_s;
    json["evictions"] = now.evictions;
    json["predicted"] = now.predicted;
    json["predicted_used"] = now.predicted_used;
    json["prediction_accuracy"] =
        known(now.predicted > 0, ratio((double) now.predicted_used, (double) now.predicted));
    json["read_bytes_per_token"] = known(tokens > 0, ratio((double) now.read_bytes, tokens));
    json["read_seconds_per_token"] = known(tokens > 0, ratio(read_s, tokens));
    json["stall_seconds_per_token"] = known(tokens > 0, ratio(stall_s, tokens));
    json["disk_bytes_per_second"] = known(read_s > 0, ratio((double) now.read_bytes, read_s));
    json["failed_reads"] = now.failed_reads;
    json["last_error"] = status.last_error.empty() ? nlohmann::ordered_json(nullptr)
                                                   : nlohmann::ordered_json(status.last_error);
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

static std::string one_metric(const char * name, bool counter, const char * help, double value) {
    char number[40];
    std::snprintf(number, sizeof(number), "%.15g", value);
    const std::string full = std::string("llama_ai:expert_") + name;
    return "# HELP " + full + " " + help + "\n# TYPE " + full +
           (counter ? " counter\n" : " gauge\n") + full + " " + number + "\n";
}

std::string expert_metrics_text() {
    const auto status = expert_status();
    if (!status.enabled) {
        return "";
    }
    const auto & now = status.counters;
    return one_metric("hits_total", true, "Experts wanted and found in memory.",
                      (double) now.hits) +
           one_metric("misses_total", true, "Experts wanted and not found in memory.",
                      (double) now.misses) +
           one_metric("read_bytes_total", true, "Bytes of experts read.", (double) now.read_bytes) +
           one_metric("read_seconds_total", true, "Time with a read going on.",
                      (double) now.read_ns / 1e9) +
           one_metric("stall_seconds_total", true, "Time that the computation waited for experts.",
                      (double) now.stall_ns / 1e9) +
           one_metric("resident_bytes", false, "Bytes of experts in memory.",
                      (double) now.resident_bytes) +
           one_metric("budget_bytes", false, "Memory for experts; 0: the kernel decides.",
                      (double) status.budget_bytes) +
           one_metric("evictions_total", true, "Experts dropped from memory.",
                      (double) now.evictions) +
           one_metric("predicted_total", true, "Experts read ahead on a guess.",
                      (double) now.predicted) +
           one_metric("predicted_used_total", true, "Of these, the ones that were wanted.",
                      (double) now.predicted_used) +
           one_metric("failed_reads_total", true, "Reads that failed.", (double) now.failed_reads);
}

std::string expert_summary(const expert_counters & before, const expert_counters & after) {
    const double hits = (double) (after.hits - before.hits);
    const double misses = (double) (after.misses - before.misses);
    const double bytes = (double) (after.read_bytes - before.read_bytes);
    const double read_s = (double) (after.read_ns - before.read_ns) / 1e9;
    const double tokens = (double) (after.tokens - before.tokens);
    char text[256];
    std::snprintf(text, sizeof(text),
                  "%.1f %% of %.0f found in memory, %.1f MB read (%.2f MB a token) at %.0f MB/s, "
                  "waited %.0f ms, %.0f dropped",
                  100 * ratio(hits, hits + misses), hits + misses, bytes / 1e6,
                  ratio(bytes / 1e6, tokens), ratio(bytes / 1e6, read_s),
                  (double) (after.stall_ns - before.stall_ns) / 1e6,
                  (double) (after.evictions - before.evictions));
    return text;
}

} // namespace llama_ai
