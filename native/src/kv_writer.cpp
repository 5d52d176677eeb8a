#include "kv_writer.h"

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <chrono>
#include <ctime>
#include <system_error>

namespace llama_ai {

kv_writer::kv_writer(kv_store & store, std::function<void(const std::string &)> failed,
                     std::function<void()> first)
    : store(store), failed(std::move(failed)), first(std::move(first)), thread([this] { run(); }) {}

kv_writer::~kv_writer() {
    {
        std::lock_guard<std::mutex> guard(mutex);
        ending = true;
    }
    changed.notify_all();
    thread.join();
}

void kv_writer::submit(kv_job job) {
    {
        std::lock_guard<std::mutex> guard(mutex);
        queue.push_back(std::move(job));
    }
    changed.notify_all();
}

bool kv_writer::drain(int timeout_ms) {
    std::unique_lock<std::mutex> guard(mutex);
    return changed.wait_for(guard, std::chrono::milliseconds(timeout_ms),
                            [this] { return queue.empty() && !busy; });
}

bool kv_writer::broken() const {
    std::lock_guard<std::mutex> guard(mutex);
    return is_broken;
}

size_t kv_writer::queued() const {
    std::lock_guard<std::mutex> guard(mutex);
    return queue.size() + (busy ? 1 : 0);
}

void kv_writer::run() {
#ifdef __linux__
    // Threads that decode come first; the disk does not care. (On Linux, of this thread alone.)
    setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), 19);
#endif
    first();
    std::unique_lock<std::mutex> guard(mutex);
    while (true) {
        changed.wait(guard, [this] { return ending || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        {
            kv_job job = std::move(queue.front());
            queue.pop_front();
            busy = true;
            guard.unlock();
            work(job);
            timespec used;
            if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0) {
                used_us = (uint64_t) used.tv_sec * 1000000 + (uint64_t) used.tv_nsec / 1000;
            }
        } // its buffers go back before it counts as done
        guard.lock();
        busy = false;
        changed.notify_all();
    }
}

void kv_writer::work(kv_job & job) {
    if (broken()) {
        if (job.entry) {
            store.abandon(job.entry);
        }
        return;
    }
    try {
        bool durable = true;
        if (job.entry) {
            std::vector<const uint8_t *> data;
            for (const auto & buffer : job.data) {
                data.push_back(buffer.get());
            }
            durable = store.write(job.entry, data);
        }
        if (durable) {
            store.drop(job.replaces);
        }
        store.touch(job.touch);
    } catch (const std::system_error & error) {
        {
            std::lock_guard<std::mutex> guard(mutex);
            is_broken = true;
        }
        failed(error.code().message());
    }
}

} // namespace llama_ai
