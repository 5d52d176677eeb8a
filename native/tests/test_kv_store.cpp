// The store without an engine: what is found, what is refused, what is dropped, and what happens
// when the disk or somebody else misbehaves.

#include "check.h"
#include "kv_posix.h"
#include "kv_samples.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <system_error>
#include <thread>

namespace fs = std::filesystem;
using namespace samples;

static void finds_the_longest_prefix() {
    const directory dir;
    kv_store store(options(dir));
    const auto a = conversation(1, 3000);
    CHECK(write(store, a, 0, 1000));
    CHECK(write(store, a, 1000, 2000));
    CHECK(write(store, a, 2000, 2500));
    CHECK(!write(store, a, 2000, 2500)); // there already
    CHECK(find(store, a).tokens == 2500);
    CHECK(find(store, a).pieces.size() == 3);

    // A branch in the middle of a piece: the common part of it, and no more.
    auto b = a;
    b[1500]++;
    CHECK(find(store, b).tokens == 1500);
    CHECK(find(store, b).pieces.back().end == 1500);
    CHECK(write(store, b, 1500, 2900));
    CHECK(find(store, b).tokens == 2900);
    CHECK(find(store, b).pieces[1].end == 1500);
    CHECK(find(store, a).tokens == 2500);
    // A piece that begins before the end of another, and reaches farther.
    CHECK(write(store, a, 900, 2700));
    CHECK(find(store, a).tokens == 2700);

    // Conversations that share 1,024 or 4,096 tokens share just these.
    for (const int shared : {1024, 4096}) {
        const auto one = conversation(11, 6000, shared);
        const auto two = conversation(12, 6000, shared);
        write(store, one, 0, 6000);
        CHECK(find(store, two).tokens == shared);
    }
    // Less than a block in common is not worth it; another model has nothing.
    CHECK(find(store, conversation(2, 3000, 0)).tokens == 0);
    CHECK(find(store, a, false, {7, 7}).tokens == 0);
    CHECK(find(store, a, false, {7, 7}).others > 0);
    // A gap is never jumped over.
    const auto c = conversation(3, 3000);
    write(store, c, 1000, 2000);
    CHECK(find(store, c).tokens == 0 && find(store, c).matched == 2000);

    // All of it again by another server that has only the files.
    kv_store again(options(dir));
    CHECK(find(again, a).tokens == 2700 && find(again, b).tokens == 2900);
    for (const auto & piece : find(again, b).pieces) {
        bool right = false;
        CHECK(read(again, piece.entry, &right) == kv_read::ok && right);
    }
}

static void finds_partial_states() {
    const directory dir;
    kv_store store(options(dir));
    const auto a = conversation(1, 3000);
    CHECK(write(store, a, 0, 2000));
    CHECK(find(store, a, true).tokens == 0); // cells alone are of no use
    CHECK(write(store, a, 700, 700, kv_kind::partial));
    CHECK(write(store, a, 1600, 1600, kv_kind::partial));
    CHECK(write(store, a, 2500, 2500, kv_kind::partial)); // no cells up to there
    CHECK(find(store, a, true).tokens == 1600);
    auto b = a;
    b[1599]++;
    CHECK(find(store, b, true).tokens == 700);
    b[699]++;
    CHECK(find(store, b, true).tokens == 0);
    // A state of the whole prompt leaves nothing to evaluate.
    kv_query query;
    query.fingerprint = model;
    query.tokens = a.data();
    query.count = 1600;
    query.partial = true;
    query.max_end = 1599;
    CHECK(store.find(query).tokens == 700);

    // Of a model without cells: where conversations part is found all the same.
    const auto c = conversation(21, 2000, 0);
    auto d = c;
    d[900]++;
    CHECK(write(store, c, 1900, 1900, kv_kind::partial));
    query.tokens = d.data();
    query.count = d.size();
    query.segments = false;
    query.max_end = 1999;
    CHECK(store.find(query).tokens == 0 && store.find(query).matched == 900);
    query.tokens = c.data();
    CHECK(store.find(query).tokens == 1900);
}

static void refuses_damage() {
    const auto a = conversation(1, 2000);
    const auto file_of = [](const directory & dir) {
        for (const auto & item : fs::directory_iterator(dir.path)) {
            if (item.path().extension() == ".kv") {
                return item.path();
            }
        }
        return fs::path();
    };
    // One bit: in the fixed part, the tokens, the state's first, a middle and the last byte.
    for (const size_t at : {8, 100, 510, 512, 5000, 12288, 20000, 12288 + 19999}) {
        const directory dir;
        {
            kv_store store(options(dir));
            CHECK(write(store, a, 0, 2000));
        }
        {
            std::fstream file(file_of(dir), std::ios::in | std::ios::out | std::ios::binary);
            file.seekg((std::streamoff) at);
            const char byte = (char) (file.get() ^ 0x10);
            file.seekp((std::streamoff) at);
            file.put(byte);
        }
        kv_store store(options(dir));
        const auto plan = find(store, a);
        if (at < 12288 && at != 510) { // 510 is past the header's fields, but in its checksum
            CHECK(plan.tokens == 0);
        }
        if (plan.tokens > 0) {
            CHECK(read(store, plan.pieces[0].entry) == kv_read::damaged);
            store.set_aside(plan.pieces[0].entry);
        }
        CHECK(find(store, a).tokens == 0);
        CHECK(store.stats(model).damaged_files == 1);
        CHECK(store.stats(model).files == 0);
        CHECK(write(store, a, 0, 2000)); // and is written anew
        CHECK(find(store, a).tokens == 2000);
    }
    // Shorter, at every part, and longer.
    for (const size_t size : {0, 1, 511, 512, 4096, 12288, 13000, 32767, 40000}) {
        const directory dir;
        {
            kv_store store(options(dir));
            CHECK(write(store, a, 0, 2000));
        }
        fs::resize_file(file_of(dir), size);
        kv_store store(options(dir));
        CHECK(find(store, a).tokens == 0);
        CHECK(store.stats(model).damaged_files == 1);
    }
    // While it is in the index.
    const directory dir;
    kv_store store(options(dir));
    CHECK(write(store, a, 0, 2000));
    const auto entry = find(store, a).pieces.at(0).entry;
    fs::resize_file(file_of(dir), 20000);
    CHECK(read(store, entry) == kv_read::damaged);
    fs::remove(file_of(dir));
    CHECK(read(store, entry) == kv_read::missing);
    store.refresh();
    CHECK(find(store, a).tokens == 0);
    // Strangers' files.
    std::ofstream(dir.path / "0000.kv") << "hello";
    std::ofstream(dir.path / "notes.txt") << "hello";
    fs::create_symlink("/etc/passwd", dir.path / "link.kv");
    kv_store third(options(dir));
    CHECK(third.stats(model).files == 0);
    CHECK(fs::exists(dir.path / "notes.txt"));
}

static void keeps_its_caps() {
    const auto one_file = [](int seed) { return conversation(seed, 300); };
    const uint64_t file_bytes = 4096 + 20480;
    const directory dir;
    kv_store store(options(dir, 10 * file_bytes));
    for (int i = 1; i <= 30; i++) {
        CHECK(write(store, one_file(i), 0, 300));
        CHECK(bytes_in(dir.path) <= 10 * file_bytes);
    }
    CHECK(store.stats(model).files == 10);
    CHECK(store.stats(model).evicted_files == 20);
    CHECK(find(store, one_file(20)).tokens == 0);
    CHECK(find(store, one_file(20)).evicted);
    CHECK(!find(store, one_file(99)).evicted);
    // Using the oldest keeps it.
    CHECK(find(store, one_file(21)).tokens == 300);
    store.touch({find(store, one_file(21)).pieces.at(0).entry});
    CHECK(write(store, one_file(31), 0, 300));
    CHECK(find(store, one_file(21)).tokens == 300);
    CHECK(find(store, one_file(22)).tokens == 0);
    // A cap for all models together.
    CHECK(write(store, one_file(32), 0, 300, kv_kind::segment, 20000, 0, {9, 9}));
    CHECK(bytes_in(dir.path) <= 10 * file_bytes);
    // What others build on goes last.
    const auto a = conversation(50, 900);
    CHECK(write(store, a, 0, 300));
    CHECK(write(store, a, 300, 600));
    CHECK(write(store, a, 600, 900));
    std::vector<kv_entry_ptr> used;
    for (const auto & piece : find(store, a).pieces) {
        used.push_back(piece.entry);
    }
    store.touch(used);
    for (int left = 3, i = 0; left > 0; i++) {
        CHECK(write(store, one_file(100 + i), 0, 300));
        const int now = (int) find(store, a).pieces.size();
        CHECK(find(store, a).tokens == now * 300);
        CHECK(now == left || now == left - 1);
        left = now;
    }
    // One file larger than the cap: not stored, nothing lost for it.
    const auto before = store.stats(model).files;
    CHECK(!write(store, conversation(60, 300), 0, 300, kv_kind::segment, 11 * file_bytes));
    CHECK(store.stats(model).files == before);
    CHECK(find(store, conversation(60, 300)).tokens == 0);
    // A smaller cap later.
    kv_store smaller(options(dir, 3 * file_bytes));
    CHECK(bytes_in(dir.path) <= 3 * file_bytes);
    kv_store nothing(options(dir, 0));
    CHECK(bytes_in(dir.path) == 0);
    CHECK(!write(nothing, one_file(1), 0, 300));
}

static void keeps_system_prompts() {
    const uint64_t file_bytes = 4096 + 20480;
    const directory dir;
    auto wanted = options(dir, 12 * file_bytes);
    wanted.max_system = 2;
    kv_store store(wanted);
    const uint32_t whole = kv_flag_system | kv_flag_system_end;
    for (int i = 1; i <= 3; i++) {
        CHECK(write(store, conversation(i, 300), 0, 300, kv_kind::segment, 20000, whole));
    }
    for (int i = 0; i < 40; i++) {
        CHECK(write(store, conversation(1000 + i, 300), 0, 300));
    }
    CHECK(find(store, conversation(1, 300)).tokens == 0); // the third newest
    CHECK(find(store, conversation(2, 300)).tokens == 300);
    CHECK(find(store, conversation(3, 300)).tokens == 300);
    CHECK(store.stats(model).system_prompts == 2);
}

static void set_time(const fs::path & path, int64_t seconds) {
    const timeval times[2] = {{(time_t) seconds, 0}, {(time_t) seconds, 0}};
    CHECK(utimes(path.c_str(), times) == 0);
}

static void survives_clocks() {
    const directory dir;
    const auto a = conversation(1, 300);
    const auto b = conversation(2, 300);
    const auto c = conversation(3, 300);
    fs::path path_a, path_b;
    {
        kv_store store(options(dir));
        path_a = dir.path / write(store, a, 0, 300)->name;
        path_b = dir.path / write(store, b, 0, 300)->name;
        write(store, c, 0, 300);
    }
    set_time(path_a, time(nullptr) - 31 * 86400);  // too old
    set_time(path_b, time(nullptr) + 400 * 86400); // the clock was ahead
    auto wanted = options(dir);
    kv_store store(wanted);
    CHECK(find(store, a).tokens == 0 && !fs::exists(path_a));
    CHECK(find(store, b).tokens == 300 && find(store, c).tokens == 300);
    struct stat info;
    CHECK(stat(path_b.c_str(), &info) == 0 && info.st_mtime < time(nullptr) + 60);
    set_time(path_b, 0);
    wanted.max_age_s = 0; // no limit
    kv_store ageless(wanted);
    CHECK(find(ageless, b).tokens == 300);
}

static void shares_a_directory() {
    const directory dir;
    kv_store one(options(dir));
    kv_store two(options(dir));
    const auto a = conversation(1, 600);
    CHECK(write(one, a, 0, 600));
    CHECK(find(two, a).tokens == 0);
    two.refresh();
    CHECK(find(two, a).tokens == 600);
    CHECK(!write(two, a, 0, 600));
    CHECK(one.clear() == 1);
    // The other one still believes in it: a miss, no more.
    CHECK(read(two, find(two, a).pieces.at(0).entry) == kv_read::missing);
    two.refresh();
    CHECK(find(two, a).tokens == 0);
    // Both at the same time, the same files and different ones.
    const uint64_t cap = 40 * (4096 + 20480);
    kv_store small_one(options(dir, cap));
    kv_store small_two(options(dir, cap));
    const auto work = [&](kv_store & store, int seed) {
        for (int i = 0; i < 60; i++) {
            write(store, conversation(i % 3 == 0 ? i : seed + i, 300), 0, 300);
            store.refresh();
            for (const auto & piece : find(store, conversation(i, 300)).pieces) {
                bool right = true;
                const auto status = read(store, piece.entry, &right);
                CHECK(status == kv_read::ok || status == kv_read::missing);
                CHECK(right);
            }
        }
    };
    std::thread first(work, std::ref(small_one), 1000);
    std::thread second(work, std::ref(small_two), 2000);
    std::atomic<bool> done{false};
    std::thread third([&] {
        while (!done) {
            kv_store starting(options(dir, cap)); // clears leftovers, and nothing that is alive
        }
    });
    first.join();
    second.join();
    done = true;
    third.join();
    CHECK(small_one.stats(model).written_files + small_one.stats(model).skipped_files == 60);
    CHECK(small_two.stats(model).written_files + small_two.stats(model).skipped_files == 60);
    // Each may have one file under way that the other does not know of.
    CHECK(bytes_in(dir.path) <= cap + 4096 + 20480);
    CHECK(small_one.stats(model).damaged_files == 0 && small_two.stats(model).damaged_files == 0);
}

static std::string refusal(const kv_store_options & wanted) {
    try {
        kv_store store(wanted);
    } catch (const std::runtime_error & error) {
        return error.what();
    }
    return "";
}

static void refuses_directories() {
    const directory dir;
    fs::create_directory(dir.path);
    fs::permissions(dir.path, fs::perms::owner_all | fs::perms::group_all);
    kv_store store(options(dir));
    struct stat info;
    CHECK(stat(dir.path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0700);
    const auto entry = write(store, conversation(1, 300), 0, 300);
    CHECK(stat((dir.path / entry->name).c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);

    std::ofstream(dir.path / "mine.txt") << "x";
    fs::permissions(dir.path, fs::perms::owner_all | fs::perms::others_read);
    CHECK(refusal(options(dir)).find("empty directory") != std::string::npos);
    kv_store_options wanted;
    wanted.dir = (dir.path / "mine.txt").string();
    CHECK(refusal(wanted).find("not a directory") != std::string::npos);
    wanted.dir = "/proc/llama-ai-kv";
    CHECK(!refusal(wanted).empty());
}

// A directory that may be read and not written, from the start and from one moment on. Root may
// write everywhere, and does not do so here.
static void refuses_to_write_where_it_may_not() {
    const directory dir;
    const bool root = geteuid() == 0;
    const uid_t somebody = 65534;
    fs::create_directory(dir.path);
    CHECK(chmod(dir.path.c_str(), 0700) == 0);
    CHECK(!root || (chown(dir.path.c_str(), somebody, (gid_t) -1) == 0 && seteuid(somebody) == 0));
    kv_store store(options(dir));
    CHECK(write(store, conversation(1, 300), 0, 300));
    CHECK(chmod(dir.path.c_str(), 0500) == 0);
    int problem = 0;
    try {
        write(store, conversation(2, 300), 0, 300);
    } catch (const std::system_error & error) {
        problem = error.code().value();
    }
    CHECK(problem == EACCES);
    bool right = false; // and goes on reading
    const auto entry = find(store, conversation(1, 300)).pieces.at(0).entry;
    CHECK(read(store, entry, &right) == kv_read::ok && right);
    CHECK(!refusal(options(dir)).empty());
    CHECK(chmod(dir.path.c_str(), 0700) == 0);
    CHECK(!root || seteuid(0) == 0);
}

static void gives_up_a_failing_disk(const fs::path & below) {
    const directory dir(below);
    kv_store store(options(dir));
    CHECK(write(store, conversation(1, 300), 0, 300));
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit small = {10000, limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    bool thrown = false;
    try {
        write(store, conversation(2, 300), 0, 300);
    } catch (const std::system_error & error) {
        thrown = error.code().value() == EFBIG;
    }
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(thrown);
    CHECK(store.stats(model).failed_writes == 1 && store.stats(model).files == 1);
    CHECK(bytes_in(dir.path) == 4096 + 20480); // nothing is left of the attempt
    CHECK(find(store, conversation(1, 300)).tokens == 300);
    CHECK(write(store, conversation(2, 300), 0, 300));
}

// Past the page cache or not, aligned or not, of any length: what was written is what is read, and
// what lies behind it in memory does not leak into the file.
static void writes_any_piece(const fs::path & below) {
    const directory dir(below);
    fs::create_directory(dir.path);
    void * memory = nullptr;
    const size_t most = 3 << 20;
    CHECK(posix_memalign(&memory, 4096, most) == 0);
    auto * bytes = static_cast<uint8_t *>(memory);
    for (size_t i = 0; i < most; i++) {
        bytes[i] = (uint8_t) (i * 31 + i / 4096);
    }
    int count = 0;
    for (const size_t begin : {0, 1, 512}) {
        for (const size_t size : {0, 1, 4095, 4096, 4097, 100000, 2 << 20}) {
            const std::string path = (dir.path / std::to_string(count++)).string();
            const llama_ai::file_handle file(open(path.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
            const std::string head(8192, 'h');
            write_all(file.get(), head.data(), head.size(), 0);
            write_past_cache(file.get(), bytes + begin, size, head.size());
            CHECK(fs::file_size(path) == head.size() + size);
            std::vector<uint8_t> read(head.size() + size);
            CHECK(read_all(file.get(), read.data(), read.size(), 0));
            CHECK(std::memcmp(read.data(), head.data(), head.size()) == 0);
            CHECK(std::memcmp(read.data() + head.size(), bytes + begin, size) == 0);
        }
    }
    const llama_ai::file_handle full(open("/dev/full", O_WRONLY));
    int problem = 0;
    try {
        write_past_cache(full.get(), bytes, 4096, 0);
    } catch (const std::system_error & error) {
        problem = error.code().value();
    }
    CHECK(problem == ENOSPC);
    free(memory);
}

static void starts_with_many_files() {
    const directory dir("/dev/shm");
    const auto shared = conversation(0, 2000, 2000);
    {
        kv_store store(options(dir));
        for (int i = 1; i <= 1000; i++) {
            CHECK(write(store, conversation(i, 600, i % 2 == 0 ? 300 : 0), 0, 600, kv_kind::segment,
                        100));
        }
    }
    kv_store store(options(dir));
    CHECK(store.stats(model).files == 1000);
    for (int i = 1; i <= 1000; i += 37) {
        CHECK(find(store, conversation(i, 600, i % 2 == 0 ? 300 : 0)).tokens == 600);
    }
}

int main() {
    finds_the_longest_prefix();
    finds_partial_states();
    refuses_damage();
    keeps_its_caps();
    keeps_system_prompts();
    survives_clocks();
    shares_a_directory();
    refuses_directories();
    refuses_to_write_where_it_may_not();
    gives_up_a_failing_disk(fs::temp_directory_path());
    gives_up_a_failing_disk("/dev/shm");
    writes_any_piece(fs::temp_directory_path());
    writes_any_piece("/dev/shm");
    starts_with_many_files();
    return 0;
}
