#include "expert_trace.h"

#include "kv_hash.h"
#include "kv_posix.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace llama_ai {

static const char magic[8] = {'L', 'A', 'I', 'X', 'T', 'R', 'C', '1'};
static const char block_magic[4] = {'B', 'L', 'K', '1'};
static const size_t block_header_bytes = 24, record_header_bytes = 8;
// A block is written when so much has gathered, or so much time has passed.
static const size_t block_bytes = 1u << 20;
static const auto block_age = std::chrono::seconds(2);
// Bounds of what a reader believes.
static const uint32_t max_layers = 4096, max_experts = 65536, max_name = 4096;
static const uint32_t max_block = 64u << 20;

template <typename T>
static void put(std::vector<uint8_t> & to, T value) {
    for (size_t i = 0; i < sizeof(T); i++) {
        to.push_back((uint8_t) ((uint64_t) value >> (8 * i)));
    }
}

namespace {

class cursor {
public:
    cursor(const uint8_t * data, size_t size) : at(data), left(size) {}

    template <typename T>
    T get() {
        T value = 0;
        for (size_t i = 0; i < sizeof(T); i++) {
            value = (T) (value | ((uint64_t) at[i] << (8 * i)));
        }
        at += sizeof(T);
        left -= sizeof(T);
        return value;
    }
    const uint8_t * take(size_t size) {
        const uint8_t * from = at;
        at += size;
        left -= size;
        return from;
    }

    const uint8_t * at;
    size_t left;
};

} // namespace

static std::vector<uint8_t> block(const std::vector<uint8_t> & payload, uint32_t records,
                                  uint32_t dropped) {
    std::vector<uint8_t> bytes(block_magic, block_magic + sizeof(block_magic));
    bytes.reserve(block_header_bytes + payload.size());
    put<uint32_t>(bytes, (uint32_t) payload.size());
    put<uint32_t>(bytes, records);
    put<uint32_t>(bytes, dropped);
    put<uint64_t>(bytes, xxh64(payload.data(), payload.size()));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
}

expert_trace_writer::expert_trace_writer(const std::string & path, int n_layer, int n_expert,
                                         int n_used, const std::string & model, uint64_t max_bytes,
                                         size_t buffer_bytes)
    : n_expert(n_expert), max_bytes(max_bytes), buffer_bytes(buffer_bytes),
      enough(std::min(block_bytes, buffer_bytes / 2)) {
    file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) {
        throw std::system_error(errno, std::generic_category(), "cannot write " + path);
    }
    std::vector<uint8_t> header(magic, magic + sizeof(magic));
    put<uint32_t>(header, (uint32_t) n_layer);
    put<uint32_t>(header, (uint32_t) n_expert);
    put<uint32_t>(header, (uint32_t) n_used);
    const size_t name = std::min<size_t>(model.size(), max_name);
    put<uint32_t>(header, (uint32_t) name);
    header.insert(header.end(), model.begin(), model.begin() + (ptrdiff_t) name);
    put<uint64_t>(header, xxh64(header.data(), header.size()));
    try {
        write_all(file, header.data(), header.size(), 0);
    } catch (const std::system_error & error) {
        close(file);
        throw std::system_error(error.code(), "cannot write " + path);
    }
    bytes = header.size();
    filling.reserve(buffer_bytes);
    thread = std::thread(&expert_trace_writer::run, this);
}

expert_trace_writer::~expert_trace_writer() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        stop = true;
    }
    wake.notify_one();
    thread.join();
    close(file);
}

size_t expert_trace_writer::record_bytes(const expert_routing & routing) const {
    return record_header_bytes +
           (size_t) routing.n_tokens * routing.n_used * (n_expert <= 256 ? 1 : 2);
}

bool expert_trace_writer::append(const expert_routing & routing) {
    const size_t size = record_bytes(routing);
    if (!failure.empty() || filling.size() + size > buffer_bytes) {
        filling_dropped++;
        all_dropped++;
        return false;
    }
    put<uint16_t>(filling, (uint16_t) routing.layer);
    put<uint16_t>(filling, (uint16_t) routing.n_used);
    put<uint32_t>(filling, (uint32_t) routing.n_tokens);
    size_t at = filling.size();
    filling.resize(at + size - record_header_bytes);
    for (int token = 0; token < routing.n_tokens; token++) {
        for (int k = 0; k < routing.n_used; k++) {
            const int32_t id = routing.expert(token, k);
            filling[at++] = (uint8_t) id;
            if (n_expert > 256) {
                filling[at++] = (uint8_t) (id >> 8);
            }
        }
    }
    filling_records++;
    return filling.size() >= enough;
}

void expert_trace_writer::add(const expert_routing & routing) {
    bool full = false;
    {
        std::lock_guard<std::mutex> lock(mutex);
        full = append(routing);
    }
    if (full) {
        wake.notify_one();
    }
}

void expert_trace_writer::add_waiting(const expert_routing & routing) {
    const size_t size = record_bytes(routing);
    std::unique_lock<std::mutex> lock(mutex);
    const auto fits = [&] {
        return filling.empty() || filling.size() + size <= buffer_bytes || !failure.empty();
    };
    if (!fits()) {
        wanted = true;
        wake.notify_one();
        emptied.wait(lock, fits);
    }
    if (append(routing)) {
        wake.notify_one();
    }
}

void expert_trace_writer::run() {
    setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), 19); // this thread alone, on Linux
    std::vector<uint8_t> payload;
    std::unique_lock<std::mutex> lock(mutex);
    for (bool last = false; !last;) {
        wake.wait_for(lock, block_age, [&] { return stop || wanted || filling.size() >= enough; });
        last = stop;
        wanted = false;
        if (filling_records == 0 && filling_dropped == 0) {
            continue;
        }
        payload.swap(filling);
        filling.clear();
        filling.reserve(buffer_bytes);
        const uint32_t records = filling_records, dropped = filling_dropped;
        filling_records = filling_dropped = 0;
        emptied.notify_all();
        const uint64_t at = bytes;
        const bool failed = !failure.empty();
        lock.unlock();

        std::string why;
        const auto out = block(payload, records, dropped);
        if (at + out.size() > max_bytes) {
            why = "the trace has reached its greatest size";
        } else if (!failed) {
            try {
                write_all(file, out.data(), out.size(), at);
            } catch (const std::exception & error) {
                why = error.what();
            }
        }

        lock.lock();
        if (!failed && why.empty()) {
            bytes = at + out.size();
        } else {
            all_dropped += records;
            if (!failed) {
                failure = why;
            }
        }
        payload.clear();
    }
}

uint64_t expert_trace_writer::written_bytes() const {
    std::lock_guard<std::mutex> lock(mutex);
    return bytes;
}

uint64_t expert_trace_writer::dropped() const {
    std::lock_guard<std::mutex> lock(mutex);
    return all_dropped;
}

std::string expert_trace_writer::error() const {
    std::lock_guard<std::mutex> lock(mutex);
    return failure;
}

static std::runtime_error bad(const std::string & path, uint64_t at, const std::string & what) {
    return std::runtime_error(path + ": " + what + " at byte " + std::to_string(at));
}

static void read_block(const std::string & path, uint64_t at, cursor payload, uint32_t records,
                       expert_trace & trace) {
    const size_t id_bytes = trace.n_expert <= 256 ? 1 : 2;
    for (uint32_t i = 0; i < records; i++) {
        if (payload.left < record_header_bytes) {
            throw bad(path, at, "a block shorter than its records");
        }
        expert_trace_record record;
        record.layer = payload.get<uint16_t>();
        record.n_used = payload.get<uint16_t>();
        record.n_tokens = (int) payload.get<uint32_t>();
        const uint64_t ids = (uint64_t) (uint32_t) record.n_tokens * (uint64_t) record.n_used;
        if (record.layer >= trace.n_layer || record.n_used < 1 || record.n_used > trace.n_expert ||
            record.n_tokens < 1 || ids * id_bytes > payload.left) {
            throw bad(path, at, "an impossible record");
        }
        record.ids.resize(ids);
        for (auto & id : record.ids) {
            id = id_bytes == 1 ? payload.get<uint8_t>() : payload.get<uint16_t>();
            if (id >= trace.n_expert) {
                throw bad(path, at, "an expert that the model does not have");
            }
        }
        trace.records.push_back(std::move(record));
    }
    if (payload.left != 0) {
        throw bad(path, at, "a block longer than its records");
    }
}

expert_trace read_expert_trace(const std::string & path) {
    file_handle file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status;
    if (!file || fstat(file.get(), &status) != 0) {
        throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
    }
    const uint64_t size = (uint64_t) status.st_size;
    const auto read = [&](uint64_t at, uint64_t count) {
        std::vector<uint8_t> bytes(count);
        if (!read_all(file.get(), bytes.data(), count, at)) {
            throw bad(path, at, "a read error");
        }
        return bytes;
    };
    const size_t fixed = sizeof(magic) + 16;
    if (size < fixed + 8) {
        throw std::runtime_error(path + ": not an expert trace (too short)");
    }
    auto header = read(0, fixed);
    if (std::memcmp(header.data(), magic, sizeof(magic)) != 0) {
        throw std::runtime_error(path + ": not an expert trace of a version known here");
    }
    cursor fields(header.data() + sizeof(magic), 16);
    const uint32_t n_layer = fields.get<uint32_t>(), n_expert = fields.get<uint32_t>();
    const uint32_t n_used = fields.get<uint32_t>(), name = fields.get<uint32_t>();
    if (n_layer < 1 || n_layer > max_layers || n_expert < 1 || n_expert > max_experts ||
        n_used < 1 || n_used > n_expert || name > max_name || size < fixed + name + 8) {
        throw bad(path, 8, "an impossible header");
    }
    header = read(0, fixed + name + 8);
    cursor sum(header.data() + fixed + name, 8);
    if (sum.get<uint64_t>() != xxh64(header.data(), fixed + name)) {
        throw bad(path, 8, "a damaged header");
    }
    expert_trace trace;
    trace.n_layer = (int) n_layer;
    trace.n_expert = (int) n_expert;
    trace.n_used = (int) n_used;
    trace.model.assign((const char *) header.data() + fixed, name);

    for (uint64_t at = header.size(); at < size;) {
        if (size - at < block_header_bytes) {
            trace.complete = false;
            break;
        }
        const auto head = read(at, block_header_bytes);
        if (std::memcmp(head.data(), block_magic, sizeof(block_magic)) != 0) {
            throw bad(path, at, "no block where one should begin");
        }
        cursor block_fields(head.data() + sizeof(block_magic), 20);
        const uint32_t length = block_fields.get<uint32_t>();
        const uint32_t records = block_fields.get<uint32_t>();
        const uint32_t dropped = block_fields.get<uint32_t>();
        const uint64_t checksum = block_fields.get<uint64_t>();
        if (length > max_block) {
            throw bad(path, at, "an impossible block");
        }
        if (size - at - block_header_bytes < length) {
            trace.complete = false;
            break;
        }
        const auto payload = read(at + block_header_bytes, length);
        if (xxh64(payload.data(), payload.size()) != checksum) {
            throw bad(path, at, "a damaged block");
        }
        read_block(path, at, cursor(payload.data(), payload.size()), records, trace);
        trace.dropped += dropped;
        at += block_header_bytes + length;
    }
    return trace;
}

} // namespace llama_ai
