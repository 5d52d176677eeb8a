#include "kv_tiers.h"

#include <nlohmann/json.hpp>

namespace llama_ai {

struct metric {
    const char * name; // after llama_ai:kv_
    const char * field;
    bool counter;
    const char * help;
};

static const metric metrics[] = {
    {"disk_bytes", "bytes", false, "Bytes of the KV store, all models."},
    {"disk_cap_bytes", "cap_bytes", false, "What the KV store may hold."},
    {"disk_files", "files", false, "Files of the KV store."},
    {"buffer_bytes", "buffer_bytes", false, "Memory held for copies of state."},
    {"queued_files", "queued_files", false, "Files waiting to be written."},
    {"hits_hot_total", "hits_hot", true, "Requests that went on from the slot."},
    {"hits_warm_total", "hits_warm", true, "Requests that went on from the RAM cache."},
    {"hits_cold_total", "hits_cold", true, "Requests that went on from disk."},
    {"misses_total", "misses", true, "Requests that found nothing."},
    {"restored_tokens_total", "restored_tokens", true, "Tokens restored from disk."},
    {"restored_ms_total", "restored_ms", true, "Time of restoring from disk."},
    {"copied_bytes_total", "copied_bytes", true, "State copied for the writer."},
    {"copied_ms_total", "copied_ms", true, "Time of these copies."},
    {"written_bytes_total", "written_bytes", true, "Bytes written."},
    {"read_bytes_total", "read_bytes", true, "Bytes read."},
    {"evicted_files_total", "evicted_files", true, "Files dropped for age or room."},
    {"damaged_files_total", "damaged_files", true, "Bad files set aside."},
    {"failed_writes_total", "failed_writes", true, "Writes that failed."},
};

std::string kv_metrics_text() {
    const auto status = nlohmann::json::parse(kv_status_json());
    std::string text;
    if (!status.at("enabled").get<bool>()) {
        return text;
    }
    for (const auto & item : metrics) {
        const std::string name = std::string("llama_ai:kv_") + item.name;
        text += "# HELP " + name + " " + item.help + "\n";
        text += "# TYPE " + name + (item.counter ? " counter\n" : " gauge\n");
        text += name + " " + status.at(item.field).dump() + "\n";
    }
    return text;
}

} // namespace llama_ai
