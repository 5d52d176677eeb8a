#include "probe_worker.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace llama_ai {

// A context's bookkeeping (some 50 bytes a cell) is allocated even when its cache is not, and an
// absurd context size must end in an error and not in a machine without memory. Graphs need room
// too: some architectures reserve 160 nodes a token of the ubatch.
static rlimit child_limit() {
    const rlim_t ram_bytes = rlim_t(sysconf(_SC_PHYS_PAGES)) * rlim_t(sysconf(_SC_PAGESIZE));
    const rlim_t limit_bytes = std::min(rlim_t(16) << 30, ram_bytes / 2);
    return {limit_bytes, limit_bytes};
}

static bool write_all(int fd, const void * data, size_t size) {
    const char * at = static_cast<const char *>(data);
    while (size > 0) {
        const ssize_t n = write(fd, at, size);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        if (n > 0) {
            at += n;
            size -= n;
        }
    }
    return true;
}

static bool read_all(int fd, void * data, size_t size) {
    char * at = static_cast<char *>(data);
    while (size > 0) {
        const ssize_t n = read(fd, at, size);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return false;
        }
        if (n > 0) {
            at += n;
            size -= n;
        }
    }
    return true;
}

static std::string tail_of(std::FILE * file) {
    std::fseek(file, 0, SEEK_END);
    const long size = std::ftell(file);
    std::fseek(file, size > 2000 ? size - 2000 : 0, SEEK_SET);
    std::string text(2000, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    return text;
}

static std::string how_it_ended(int status) {
    if (WIFSIGNALED(status)) {
        return std::string("the engine was ended by ") + strsignal(WTERMSIG(status));
    }
    return "the engine ended with status " + std::to_string(WEXITSTATUS(status));
}

std::vector<std::string>
run_isolated(size_t count, bool verbose, const std::function<std::string(size_t)> & work,
             const std::function<std::string(const std::string &)> & died) {
    std::vector<std::string> results;
    while (results.size() < count) {
        int pipe_fds[2];
        std::FILE * log = std::tmpfile();
        if (log == nullptr || pipe(pipe_fds) != 0) {
            throw std::runtime_error(std::string("cannot start a measurement: ") +
                                     std::strerror(errno));
        }
        const pid_t child = fork();
        if (child < 0) {
            throw std::runtime_error(std::string("cannot start a measurement: ") +
                                     std::strerror(errno));
        }
        if (child == 0) {
            close(pipe_fds[0]);
            const rlimit limit = child_limit();
            setrlimit(RLIMIT_DATA, &limit);
            dup2(STDERR_FILENO, STDOUT_FILENO); // nothing of the engine's may mix with our answer
            if (!verbose) {
                dup2(fileno(log), STDERR_FILENO);
                dup2(fileno(log), STDOUT_FILENO);
                setenv("GGML_NO_BACKTRACE", "1", 1); // a debugger must not stop us
            }
            for (size_t i = results.size(); i < count; i++) {
                const std::string answer = work(i);
                const uint64_t size = answer.size();
                if (!write_all(pipe_fds[1], &size, sizeof(size)) ||
                    !write_all(pipe_fds[1], answer.data(), size)) {
                    break;
                }
            }
            std::fflush(nullptr);
            _exit(0); // drivers' exit handlers have nothing to do here, and may hang
        }
        close(pipe_fds[1]);
        uint64_t size = 0;
        while (results.size() < count && read_all(pipe_fds[0], &size, sizeof(size))) {
            std::string answer(size, '\0');
            if (!read_all(pipe_fds[0], answer.data(), size)) {
                break;
            }
            results.push_back(std::move(answer));
        }
        close(pipe_fds[0]);
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        if (results.size() < count) {
            std::string reason = how_it_ended(status);
            const std::string tail = tail_of(log);
            if (!tail.empty()) {
                reason += ": " + tail;
            }
            results.push_back(died(reason));
        }
        std::fclose(log);
    }
    return results;
}

} // namespace llama_ai
