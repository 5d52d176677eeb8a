#include "kv_fingerprint.h"

#include "kv_posix.h"

#include "llama-context.h"
#include "llama.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace llama_ai {

namespace {

// Everything that a state depends on goes through here, once.
class fingerprinter {
public:
    template <typename T>
    void add(const T & value) {
        add_bytes(&value, sizeof(value));
    }
    void add(const std::string & text) {
        add(text.size());
        add_bytes(text.data(), text.size());
    }
    // A file by its size, its beginning (a model's header) and samples of all the rest: reading
    // all of a model would take longer than evaluating a prompt.
    void add_file(const std::string & path) {
        add(path.empty());
        if (path.empty()) {
            return;
        }
        struct stat info;
        file_handle file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!file || fstat(file.get(), &info) != 0) {
            add(path); // read by the engine already, so this does not happen; never match then
            return;
        }
        const auto size = (uint64_t) info.st_size;
        add(size);
        std::vector<uint8_t> bytes(std::min<uint64_t>(size, 1 << 20));
        if (read_all(file.get(), bytes.data(), bytes.size(), 0)) {
            add_bytes(bytes.data(), bytes.size());
        }
        const uint64_t samples = 256;
        bytes.resize(4096);
        for (uint64_t i = 1; i <= samples && size > bytes.size(); i++) {
            const uint64_t at = (size - bytes.size()) / samples * i;
            if (read_all(file.get(), bytes.data(), bytes.size(), at)) {
                add_bytes(bytes.data(), bytes.size());
            }
        }
    }
    kv_key key;

private:
    void add_bytes(const void * data, size_t size) {
        key = chain(key, data, size);
    }
};

// The other files of a model that is split over several.
std::vector<std::string> shards(const std::string & path) {
    const std::string end = ".gguf";
    const size_t tail = std::strlen("-00001-of-00001.gguf");
    if (path.size() <= tail) {
        return {path};
    }
    int number = 0;
    int count = 0;
    const std::string suffix = path.substr(path.size() - tail);
    if (std::sscanf(suffix.c_str(), "-%5d-of-%5d.gguf", &number, &count) != 2 || count < 2) {
        return {path};
    }
    std::vector<std::string> result;
    for (int i = 0; i < count; i++) {
        char name[4096];
        llama_split_path(name, sizeof(name), path.substr(0, path.size() - tail).c_str(), i, count);
        result.push_back(name);
    }
    return result;
}

void add_context(fingerprinter & print, llama_context * context, bool windowed) {
    print.add(context != nullptr);
    if (!context) {
        return;
    }
    const llama_cparams & used = context->get_cparams();
    print.add(used.rope_freq_base);
    print.add(used.rope_freq_scale);
    print.add(used.n_ctx_orig_yarn);
    print.add(used.yarn_ext_factor);
    print.add(used.yarn_attn_factor);
    print.add(used.yarn_beta_fast);
    print.add(used.yarn_beta_slow);
    print.add((int) used.rope_scaling_type);
    print.add(used.causal_attn);
    print.add(used.flash_attn);
    print.add(used.kv_unified ? 1u : used.n_seq_max); // streams
    if (windowed) {
        print.add(used.n_ubatch); // with these two the size of the window's cache
        print.add(used.n_seq_max);
    }
    print.add((int) used.ctx_type);
}

} // namespace

kv_key make_fingerprint(const common_params & params, llama_context * target,
                        llama_context * draft) {
    fingerprinter print;
    for (const auto & path : shards(params.model.path)) {
        print.add_file(path);
    }
    print.add_file(params.mmproj.path);
    for (const auto & vector : params.control_vectors) {
        print.add(vector.strength);
        print.add_file(vector.fname);
    }
    for (const auto & adapter : params.lora_adapters) {
        print.add(adapter.scale);
        print.add_file(adapter.path);
    }
    print.add(params.control_vector_layer_start);
    print.add(params.control_vector_layer_end);
    for (const auto & item : params.kv_overrides) {
        if (item.key[0] != 0) {
            print.add(std::string(item.key));
            print.add((int) item.tag);
            print.add(item.tag == LLAMA_KV_OVERRIDE_TYPE_STR ? 0 : item.val_i64);
            print.add(std::string(
                item.tag == LLAMA_KV_OVERRIDE_TYPE_STR ? item.val_str : "",
                item.tag == LLAMA_KV_OVERRIDE_TYPE_STR ? strnlen(item.val_str, 128) : 0));
        }
    }
    print.add((int) params.cache_type_k);
    print.add((int) params.cache_type_v);
    print.add(params.swa_full);
    const bool windowed = llama_model_n_swa(llama_get_model(target)) > 0;
    add_context(print, target, windowed);
    add_context(print, draft, windowed);
    if (draft) {
        print.add_file(params.speculative.draft.mparams.path);
        print.add((int) params.speculative.draft.cache_type_k);
        print.add((int) params.speculative.draft.cache_type_v);
        for (const auto type : params.speculative.types) {
            print.add((int) type);
        }
    }
    return print.key;
}

} // namespace llama_ai
