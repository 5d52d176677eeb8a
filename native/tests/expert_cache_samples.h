// A model's experts in a small file, for the tests of the expert cache.
#pragma once

#include "check.h"
#include "expert_cache.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

// Layers of experts with random bytes, in a file of their own, mapped.
struct sample_model {
    std::string path;
    std::vector<char> content;
    std::vector<llama_ai::expert_matrix> matrices;
    int fd = -1;
    char * mapped = nullptr;

    // Each layer has gate and up of `bytes` and down of `bytes` + `more` for odd layers; slices do
    // not begin at pages unless `bytes` is a multiple of them.
    sample_model(int n_layer, int n_expert, size_t bytes, size_t more, size_t start = 4096 + 32) {
        size_t offset = start;
        const char * kinds[] = {"ffn_down_exps", "ffn_gate_exps", "ffn_up_exps"};
        for (int layer = 0; layer < n_layer; layer++) {
            for (const char * kind : kinds) {
                llama_ai::expert_matrix matrix;
                matrix.name = "blk." + std::to_string(layer) + "." + kind + ".weight";
                matrix.layer = layer;
                matrix.n_expert = n_expert;
                matrix.offset = offset;
                matrix.slice_bytes = bytes;
                if (kind == kinds[0] && layer % 2 == 1) {
                    matrix.slice_bytes += more;
                }
                offset += matrix.slice_bytes * (size_t) n_expert;
                matrices.push_back(matrix);
            }
        }
        content.resize(offset);
        uint64_t random = 88172645463325252ull;
        for (auto & byte : content) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            byte = (char) random;
        }
        char name[] = "./expert-test-XXXXXX";
        fd = mkstemp(name);
        CHECK(fd >= 0);
        path = name;
        CHECK(write(fd, content.data(), content.size()) == (ssize_t) content.size());
        CHECK(fsync(fd) == 0);
        mapped = (char *) mmap(nullptr, content.size(), PROT_READ, MAP_SHARED, fd, 0);
        CHECK(mapped != MAP_FAILED);
        for (auto & matrix : matrices) {
            matrix.mapped = mapped + matrix.offset;
        }
    }
    ~sample_model() {
        munmap(mapped, content.size());
        close(fd);
        unlink(path.c_str());
    }

    void forget_pages() {
        madvise(mapped, content.size(), MADV_DONTNEED);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }

    std::unique_ptr<llama_ai::expert_cache> cache(const llama_ai::expert_cache_options & options,
                                                  bool page_cache = false) {
        std::vector<std::unique_ptr<llama_ai::expert_file>> files;
        files.push_back(std::make_unique<llama_ai::expert_file>(fd));
        if (page_cache) {
            files.back()->use_page_cache(mapped);
        }
        return std::make_unique<llama_ai::expert_cache>(llama_ai::expert_layout(matrices),
                                                        std::move(files), options);
    }
};

// What a router chose: `ids` for n_tokens tokens.
struct sample_routing {
    std::vector<int32_t> ids;
    std::vector<int64_t> rows;
    llama_ai::expert_routing routing;

    sample_routing(int layer, int n_expert, int n_used, int n_tokens, unsigned & seed,
                   int n_same = 0) {
        rows.resize(n_expert);
        for (int token = 0; token < n_tokens; token++) {
            std::vector<int> left(n_expert);
            for (int i = 0; i < n_expert; i++) {
                left[i] = i;
            }
            for (int k = 0; k < n_used; k++) {
                const int random = (int) (rand_r(&seed) % left.size());
                const int at = token >= n_tokens - n_same ? 0 : random;
                ids.push_back(left[at]);
                rows[left[at]]++;
                left.erase(left.begin() + at);
            }
        }
        routing.layer = layer;
        routing.n_expert = n_expert;
        routing.n_used = n_used;
        routing.n_tokens = n_tokens;
        routing.rows = rows.data();
        routing.ids = ids.data();
        routing.ids_stride = n_used;
    }
};
