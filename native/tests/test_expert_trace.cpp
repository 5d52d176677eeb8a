#include "check.h"
#include "expert_samples.h"
#include "expert_trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

using namespace llama_ai;

static std::string dir;

static std::string bytes_of(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

static void write_bytes(const std::string & path, const std::string & bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

static std::string refusal(const std::string & path) {
    try {
        read_expert_trace(path);
    } catch (const std::runtime_error & error) {
        return error.what();
    }
    return "";
}

static void round_trip(int n_expert) {
    const std::string path = dir + "/round";
    sample_numbers random(7);
    std::vector<std::vector<int32_t>> written;
    {
        expert_trace_writer writer(path, 5, n_expert, 4, "a model");
        for (int i = 0; i < 20000; i++) {
            const int n_tokens = i % 50 == 0 ? 30 : 1;
            std::vector<int32_t> ids;
            for (int token = 0; token < n_tokens; token++) {
                const auto chosen = random.choice(4, n_expert);
                ids.insert(ids.end(), chosen.begin(), chosen.end());
            }
            sample_routing one(i % 5, n_expert, n_tokens, ids);
            writer.add_waiting(one.routing);
            written.push_back(ids);
        }
        CHECK(writer.dropped() == 0 && writer.error().empty());
    }
    const auto trace = read_expert_trace(path);
    CHECK(trace.n_layer == 5 && trace.n_expert == n_expert && trace.n_used == 4);
    CHECK(trace.model == "a model" && trace.complete && trace.dropped == 0);
    CHECK(trace.records.size() == written.size());
    for (size_t i = 0; i < written.size(); i++) {
        CHECK(trace.records[i].layer == (int) i % 5 && trace.records[i].n_used == 4);
        CHECK(trace.records[i].ids == written[i]);
    }
}

// The choice of a token may be a view into a longer row.
static void strides() {
    const std::string path = dir + "/strides";
    const std::vector<int32_t> rows = {5, 6, 90, 91, 7, 8, 92, 93};
    expert_routing routing;
    routing.layer = 1;
    routing.n_expert = 16;
    routing.n_used = 2;
    routing.n_tokens = 2;
    routing.ids = rows.data();
    routing.ids_stride = 4;
    {
        expert_trace_writer writer(path, 2, 16, 2, "");
        writer.add(routing);
    }
    const auto trace = read_expert_trace(path);
    CHECK(trace.records.size() == 1);
    CHECK((trace.records[0].ids == std::vector<int32_t>{5, 6, 7, 8}));
}

// Full: counted, never waited for; the file keeps within its bound and can be read.
static void bounds() {
    const std::string path = dir + "/bounds";
    std::vector<int32_t> ids(1000 * 4);
    sample_routing large(0, 64, 1000, ids);
    std::vector<int32_t> more(2000 * 4);
    sample_routing too_large(0, 64, 2000, more);
    uint64_t dropped = 0;
    {
        expert_trace_writer writer(path, 1, 64, 4, "", 1 << 20, 5000);
        writer.add(large.routing); // 4008 bytes
        writer.add(too_large.routing);
        CHECK(writer.dropped() == 1);
        dropped = writer.dropped();
    }
    CHECK(read_expert_trace(path).dropped == dropped);
    CHECK(read_expert_trace(path).records.size() == 1);
    {
        expert_trace_writer writer(path, 1, 64, 4, "", 2 << 20, 1 << 20);
        for (int i = 0; i < 1000; i++) {
            writer.add_waiting(large.routing);
        }
    }
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0 && status.st_size <= 2 << 20);
    const auto trace = read_expert_trace(path);
    CHECK(trace.complete && trace.records.size() > 100 && trace.records.size() < 1000);

    bool refused = false;
    try {
        expert_trace_writer writer(dir + "/none/trace", 1, 64, 4, "");
    } catch (const std::exception &) {
        refused = true;
    }
    CHECK(refused);
    // A disk that is full from the start or later: /dev/full.
    refused = false;
    try {
        expert_trace_writer writer("/dev/full", 1, 64, 4, "");
    } catch (const std::exception &) {
        refused = true;
    }
    CHECK(refused);
}

static void damage() {
    const std::string path = dir + "/damage";
    {
        expert_trace_writer writer(path, 3, 300, 2, "name");
        for (int i = 0; i < 60; i++) {
            sample_routing one(i % 3, 300, 1, {i * 5, (i + 7) % 300});
            writer.add(one.routing);
        }
    }
    const std::string good = bytes_of(path);
    CHECK(refusal(path).empty());
    // Every single damaged byte is found.
    for (size_t at = 0; at < good.size(); at++) {
        // The count of dropped records is not covered by the block's checksum.
        const size_t dropped_at = 8 + 16 + 4 + 8 + 12;
        if (at >= dropped_at && at < dropped_at + 4) {
            continue;
        }
        std::string bad = good;
        bad[at] = (char) (bad[at] ^ 0x55);
        write_bytes(path, bad);
        bool incomplete = false;
        try {
            incomplete = !read_expert_trace(path).complete;
        } catch (const std::runtime_error & error) {
            CHECK(std::string(error.what()).find(path) == 0);
            continue;
        }
        CHECK(incomplete); // a length that now reaches past the end
    }
    // Cut anywhere in the data: read as far as it goes.
    const size_t header = 8 + 16 + 4 + 8;
    for (size_t size = header + 1; size < good.size(); size += 31) {
        write_bytes(path, good.substr(0, size));
        const auto trace = read_expert_trace(path);
        CHECK(!trace.complete && trace.records.empty());
    }
    for (size_t size = 0; size < header; size++) {
        write_bytes(path, good.substr(0, size));
        CHECK(!refusal(path).empty());
    }
    write_bytes(path, good + good.substr(header));
    CHECK(read_expert_trace(path).records.size() == 120);
    CHECK(refusal(dir + "/missing").find("cannot read") == 0);
}

int main() {
    char name[] = "/tmp/llama-ai-trace-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    dir = name;
    round_trip(64);
    round_trip(256);
    round_trip(257);
    strides();
    bounds();
    damage();
    CHECK(std::system(("rm -r " + dir).c_str()) == 0);
    return 0;
}
