// The writer's thread and its buffers; and what a writer that is killed leaves behind:
// `test-kv-writer KILLS` ends so many writers at a random moment.

#include "check.h"
#include "kv_samples.h"
#include "kv_writer.h"

#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <random>

namespace fs = std::filesystem;
using namespace samples;

static kv_job job_for(kv_store & store, kv_buffer_pool & pool, const std::vector<int32_t> & tokens,
                      int begin, int end, size_t size) {
    kv_header header;
    header.fingerprint = model;
    header.begin = begin;
    header.end = end;
    header.sections.resize(1);
    header.sections[0].size = size;
    kv_set_keys(header, kv_block_keys(model, 0, tokens.data(), (size_t) end));
    kv_job job;
    job.entry = store.announce(
        header, std::make_shared<std::vector<int32_t>>(tokens.begin(), tokens.begin() + end));
    if (!job.entry) {
        return job;
    }
    const auto bytes = content(tokens, begin, end, size);
    auto buffer = pool.acquire(size, 10000);
    CHECK(buffer);
    std::memcpy(buffer.get(), bytes.data(), size);
    job.data.push_back(buffer);
    return job;
}

static void lends_buffers() {
    kv_buffer_pool pool(8 << 20);
    pool.prepare(2, 3 << 20); // 4 MiB each, with the granule
    CHECK(pool.held_bytes() == 8 << 20);
    auto a = pool.acquire(3 << 20);
    auto b = pool.acquire(1);
    CHECK(a && b && a != b);
    CHECK(!pool.acquire(1)); // the limit
    CHECK(!pool.acquire(1, 20));
    uint8_t * const memory = a.get();
    a = nullptr;
    CHECK(pool.acquire(1 << 20).get() == memory); // the same again
    b = nullptr;
    auto large = pool.acquire(30 << 20); // larger than the limit, alone
    CHECK(large && pool.held_bytes() >= 30 << 20);
    std::memset(large.get(), 1, 30 << 20);
    CHECK(!pool.acquire(1));
    large = nullptr;
    CHECK(pool.acquire(1));
}

static void writes_in_order() {
    const directory dir;
    kv_store store(options(dir));
    kv_buffer_pool pool(64 << 20);
    std::atomic<int> failures{0};
    const auto a = conversation(1, 900);
    {
        kv_writer writer(store, [&](const std::string &) { failures++; }, [] {});
        auto first = job_for(store, pool, a, 0, 300, 50000);
        const auto entry = first.entry;
        writer.submit(std::move(first));
        auto second = job_for(store, pool, a, 300, 600, 50000);
        second.replaces = {entry};
        writer.submit(std::move(second));
        CHECK(writer.drain(10000));
        CHECK(find(store, a).tokens == 0); // the first was replaced
        CHECK(store.stats(model).files == 1);
        // Queued counts as stored for who asks what is still to be stored, and for nobody else.
        auto third = job_for(store, pool, a, 0, 300, 50000);
        kv_query query;
        query.fingerprint = model;
        query.tokens = a.data();
        query.count = a.size();
        CHECK(store.find(query).tokens == 0);
        query.pending = true;
        CHECK(store.find(query).tokens == 600);
        CHECK(!job_for(store, pool, a, 0, 300, 50000).entry);
        writer.submit(std::move(third));
    } // it ends with its work done
    CHECK(find(store, a).tokens == 600);
    CHECK(failures == 0);
    {
        kv_writer writer(store, [&](const std::string &) { failures++; }, [] {});
        fs::remove_all(dir.path);
        writer.submit(job_for(store, pool, conversation(2, 300), 0, 300, 50000));
        writer.submit(job_for(store, pool, conversation(3, 300), 0, 300, 50000));
        CHECK(writer.drain(10000));
        CHECK(failures == 1 && writer.broken()); // told once
        kv_query query;
        const auto c = conversation(3, 300);
        query.fingerprint = model;
        query.tokens = c.data();
        query.count = c.size();
        query.pending = true;
        CHECK(store.find(query).tokens == 0); // and not announced for ever
    }
}

[[noreturn]] static void write_for_ever(const fs::path & path, unsigned seed) {
    kv_store_options wanted;
    wanted.dir = path.string();
    wanted.max_bytes = 6 << 20;
    kv_store store(wanted);
    kv_buffer_pool pool(16 << 20);
    kv_writer writer(store, [](const std::string &) { _exit(3); }, [] {});
    std::mt19937 random(seed);
    while (true) {
        const auto a = conversation((int) (random() % 50), 1200, random() % 2 ? 600 : 0);
        const int begin = (int) (random() % 3) * 300;
        const size_t size = 1000 + random() % 400000;
        auto job = job_for(store, pool, a, begin, begin + 300, size);
        if (job.entry) {
            writer.submit(std::move(job));
        }
    }
}

static void survives_kills(int kills) {
    const directory dir;
    fs::create_directory(dir.path);
    fs::permissions(dir.path, fs::perms::owner_all);
    std::mt19937 random(42);
    uint64_t found = 0;
    for (int i = 0; i < kills; i++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            write_for_ever(dir.path, (unsigned) i);
        }
        for (int waits = 0; i == 0 && waits < 10000 && fs::is_empty(dir.path); waits++) {
            usleep(1000); // until it has begun: sanitizers are slow
        }
        usleep(1000 + random() % 25000);
        CHECK(kill(child, SIGKILL) == 0);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status)); // it did not give up by itself

        kv_store_options wanted;
        wanted.dir = dir.path.string();
        wanted.max_bytes = 6 << 20;
        kv_store store(wanted);
        CHECK(bytes_in(dir.path) <= wanted.max_bytes);
        CHECK(store.stats(model).damaged_files == 0);
        for (const auto & item : fs::directory_iterator(dir.path)) {
            CHECK(item.path().extension() == ".kv"); // nothing half-written is left
        }
        for (int seed = 0; seed < 50; seed++) {
            for (const int shared : {0, 600}) {
                for (const auto & piece : find(store, conversation(seed, 1200, shared)).pieces) {
                    bool right = false;
                    CHECK(read(store, piece.entry, &right) == kv_read::ok && right);
                    found++;
                }
            }
        }
    }
    CHECK(found > (uint64_t) kills); // there was something to check
}

int main(int argc, char ** argv) {
    if (argc == 1) {
        lends_buffers();
        writes_in_order();
    }
    survives_kills(argc > 1 ? std::atoi(argv[1]) : 30);
    return 0;
}
