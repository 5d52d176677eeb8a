// Reading many files with several threads: all of them arrive, in order and right, and what is
// wrong with one is no harm to the others.

#include "check.h"
#include "kv_read_ahead.h"
#include "kv_samples.h"

#include <cstring>
#include <fstream>

namespace fs = std::filesystem;
using namespace samples;

static const size_t size = 3 * kv_checksum_bytes + 777; // several blocks, and not whole pages

static std::vector<kv_entry_ptr> store_some(kv_store & store, const std::vector<int32_t> & tokens) {
    std::vector<kv_entry_ptr> entries;
    for (int begin = 0; begin < (int) tokens.size(); begin += 300) {
        entries.push_back(write(store, tokens, begin, begin + 300, kv_kind::segment, size));
        CHECK(entries.back());
    }
    return entries;
}

static bool right(const kv_read_ahead::result & file, const std::vector<int32_t> & tokens) {
    const auto & section = file.header.sections.at(0);
    const auto wanted = content(tokens, file.header.begin, file.header.end, section.size);
    return std::memcmp(file.data.get() + section.offset, wanted.data(), wanted.size()) == 0;
}

static void reads_all() {
    const directory dir;
    kv_store store(options(dir));
    const auto tokens = conversation(1, 3000);
    const auto entries = store_some(store, tokens);
    // With room for everything, for three files at a time, and for one alone.
    for (const size_t room : {256 << 20, 3 * (6 << 20), 1 << 20}) {
        kv_buffer_pool pool(room);
        kv_read_ahead files(entries, store, pool);
        for (size_t i = 0; i < entries.size(); i++) {
            const auto file = files.take(i);
            CHECK(file.status == kv_read::ok && right(file, tokens));
            CHECK(file.header.begin == entries[i]->header.begin);
        }
    }
    CHECK(store.stats(model).read_files == 30);
    kv_buffer_pool pool(64 << 20);
    const kv_read_ahead nothing({}, store, pool);
}

static void tells_what_is_wrong() {
    const directory dir;
    kv_store store(options(dir));
    const auto tokens = conversation(1, 3000);
    const auto entries = store_some(store, tokens);
    // A bit in the third block, a file that is gone, one that is too short.
    const auto name = [&](size_t i) { return dir.path / entries[i]->name; };
    {
        std::fstream file(name(2), std::ios::in | std::ios::out | std::ios::binary);
        const auto at = (std::streamoff) (2 * kv_checksum_bytes + 99999);
        file.seekg(at);
        const char byte = (char) (file.get() ^ 1);
        file.seekp(at);
        file.put(byte);
    }
    fs::remove(name(4));
    fs::resize_file(name(6), size / 2);
    kv_buffer_pool pool(256 << 20);
    kv_read_ahead files(entries, store, pool);
    for (size_t i = 0; i < entries.size(); i++) {
        const auto file = files.take(i);
        const auto wanted = i == 4             ? kv_read::missing
                            : i == 2 || i == 6 ? kv_read::damaged
                                               : kv_read::ok;
        CHECK(file.status == wanted);
        CHECK(wanted != kv_read::ok || right(file, tokens));
    }
}

// Whoever takes no more files is not waited for, and leaves no memory behind.
static void ends_early() {
    const directory dir;
    kv_store store(options(dir));
    const auto entries = store_some(store, conversation(1, 1800));
    kv_buffer_pool pool(64 << 20);
    for (size_t count = 0; count < 4; count++) {
        for (int again = 0; again < 20; again++) {
            kv_read_ahead files(entries, store, pool);
            for (size_t i = 0; i < count; i++) {
                CHECK(files.take(i).status == kv_read::ok);
            }
        }
    }
    CHECK(pool.acquire(60 << 20, 0)); // everything came back
}

int main() {
    reads_all();
    tells_what_is_wrong();
    ends_early();
    return 0;
}
