#include "expert_residency.h"

#include "expert_ahead.h"
#include "expert_hook.h"
#include "expert_sampler.h"
#include "expert_tracking.h"
#include "hooks.h"

#include "common.h"
#include "ggml-backend.h"
#include "llama.h"
#include "log.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>

// No public header of upstream declares it.
const std::vector<std::pair<std::string, ggml_tensor *>> &
llama_internal_get_tensor_map(const llama_model * model);

namespace llama_ai {

namespace {

// Where a weight tensor of a graph is found, by the address that the loader gave it.
struct known_tensor {
    const void * data = nullptr;
    expert_cache * cache = nullptr;
    int matrix = 0;
    expert_ahead * ahead = nullptr; // or null
};

// Never changed once others can see it.
struct tensor_table {
    std::vector<known_tensor> places; // a power of two of them, at most a quarter used

    const known_tensor * find(const void * data) const {
        const size_t mask = places.size() - 1;
        for (size_t i = hash(data) & mask; places[i].data; i = (i + 1) & mask) {
            if (places[i].data == data) {
                return &places[i];
            }
        }
        return nullptr;
    }
    void add(const known_tensor & tensor) {
        const size_t mask = places.size() - 1;
        size_t i = hash(tensor.data) & mask;
        while (places[i].data) {
            i = (i + 1) & mask;
        }
        places[i] = tensor;
    }
    static size_t hash(const void * data) {
        return (size_t) (((uint64_t) (uintptr_t) data * 0x9e3779b97f4a7c15ull) >> 32);
    }
};

struct model_entry {
    const void * model = nullptr;
    std::unique_ptr<expert_cache> cache;
    std::unique_ptr<expert_ahead> ahead; // goes first
};

struct slot_view {
    bool running = false;
    expert_counters before;
};

// Lives as long as the process: threads may still look at it while it ends.
struct expert_state {
    expert_options options;
    std::atomic<const tensor_table *> table{nullptr};

    std::mutex mutex; // guards what follows
    std::vector<model_entry> models;
    std::vector<std::unique_ptr<tensor_table>> tables; // old ones too: somebody may hold one
    const void * tracked = nullptr;
    std::vector<expert_matrix> placed; // of the model that is being loaded
    std::vector<std::unique_ptr<expert_file>> files;
    std::string failure; // of the graph that was computed last
    std::string last_error;
    std::vector<slot_view> slots;

    // The thread that computes.
    int layer = -1;
    std::unique_ptr<expert_sampler> sampler; // of experts that a GPU computes
    std::atomic<bool> asked{false};          // there was a request: what came before is warm-up
};

expert_state & state() {
    static auto * one = new expert_state;
    return *one;
}

const known_tensor * find(const ggml_tensor * weights, size_t & offset) {
    const tensor_table * table = state().table.load(std::memory_order_acquire);
    if (!table) {
        return nullptr;
    }
    const ggml_tensor * whole = weights->view_src ? weights->view_src : weights;
    offset = weights->view_src ? weights->view_offs : 0;
    return table->find(whole->data);
}

std::string metadata(const llama_model * model, const std::string & key) {
    char text[256] = "";
    return llama_model_meta_val_str(model, key.c_str(), text, sizeof(text)) >= 0 ? text : "";
}

int metadata_number(const llama_model * model, const std::string & key) {
    return std::atoi(metadata(model, key).c_str());
}

void start_tracking(const void * loaded) {
    auto & all = state();
    const auto * model = (const llama_model *) loaded;
    const std::string arch = metadata(model, "general.architecture");
    expert_shape shape;
    shape.n_layer = metadata_number(model, arch + ".block_count");
    shape.n_expert = metadata_number(model, arch + ".expert_count");
    shape.n_used = metadata_number(model, arch + ".expert_used_count");
    if (all.tracked || shape.n_layer <= 0 || shape.n_expert <= 1 || shape.n_used <= 0) {
        return;
    }
    std::string name = metadata(model, "general.name");
    expert_tracking_options options;
    options.enabled = all.options.tracking || all.options.residency;
    options.stats_file = all.options.stats_file;
    options.trace_file = all.options.trace_file;
    options.warn = [](const std::string & text) { LOG_WRN("experts: %s\n", text.c_str()); };
    expert_tracking_start(options, shape, name.empty() ? arch : name);
    all.sampler = std::make_unique<expert_sampler>(16, expert_tracking_observe);
    all.tracked = loaded;
}

// Who calls holds the lock.
void rebuild_table() {
    auto & all = state();
    size_t n = 0;
    for (const auto & entry : all.models) {
        n += entry.cache->layout().matrices.size();
    }
    size_t size = 64;
    while (size < 4 * n) {
        size *= 2;
    }
    auto table = std::make_unique<tensor_table>();
    table->places.resize(size);
    for (const auto & entry : all.models) {
        const auto & matrices = entry.cache->layout().matrices;
        for (size_t i = 0; i < matrices.size(); i++) {
            table->add({matrices[i].mapped, entry.cache.get(), (int) i, entry.ahead.get()});
        }
    }
    all.table.store(n > 0 ? table.get() : nullptr, std::memory_order_release);
    all.tables.push_back(std::move(table));
}

// The dense weights are in memory of their own now: their pages need not stay in the page cache.
void forget_dense(const expert_layout & layout,
                  const std::vector<std::unique_ptr<expert_file>> & files) {
    for (int file = 0; file < (int) files.size(); file++) {
        std::vector<std::pair<uint64_t, uint64_t>> kept;
        for (const auto & matrix : layout.matrices) {
            if (matrix.file == file) {
                kept.emplace_back(matrix.offset, matrix.slice_offset(matrix.n_expert));
            }
        }
        std::sort(kept.begin(), kept.end());
        uint64_t begin = 0;
        for (const auto & range : kept) {
            files[file]->forget(begin, range.first);
            begin = range.second;
        }
        files[file]->forget(begin, files[file]->bytes());
    }
}

// The routers and the norms before them, as far as they are what we know. Null: no guesses then.
std::unique_ptr<expert_ahead> make_ahead(const void * model, expert_cache & cache) {
    std::map<std::string, ggml_tensor *> weights;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map((const llama_model *) model)) {
        weights[name] = tensor;
    }
    const auto read = [&](int layer, const char * kind, int64_t width, int64_t height) {
        std::vector<float> values;
        const auto found = weights.find("blk." + std::to_string(layer) + "." + kind);
        if (found != weights.end() && found->second->type == GGML_TYPE_F32 &&
            found->second->ne[0] == width && found->second->ne[1] == height) {
            values.resize((size_t) (width * height));
            ggml_backend_tensor_get(found->second, values.data(), 0, values.size() * sizeof(float));
        }
        return values;
    };
    const auto & shape = cache.layout();
    const int64_t n_embd = llama_model_n_embd((const llama_model *) model);
    const size_t bytes = shape.layers.size() * (size_t) (n_embd * shape.n_expert) * sizeof(float);
    if (bytes > (64u << 20)) {
        return nullptr; // they would have to be counted
    }
    expert_early_router router((int) shape.layers.size(), shape.n_expert);
    int found = 0;
    std::vector<float> norm_before;
    for (int layer = 0; layer < (int) shape.layers.size(); layer++) {
        const int n_expert = shape.n_experts_of(layer);
        if (n_expert != shape.n_expert) {
            continue;
        }
        const auto gate = read(layer, "ffn_gate_inp.weight", n_embd, n_expert);
        auto bias = read(layer, "exp_probs_b.bias", n_expert, 1);
        if (bias.empty()) {
            bias = read(layer, "ffn_gate_inp.bias", n_expert, 1);
        }
        auto norm = read(layer, "ffn_norm.weight", n_embd, 1);
        if (norm.empty()) {
            norm = read(layer, "post_attention_norm.weight", n_embd, 1);
        }
        if (!gate.empty()) {
            const auto pointer = [](const std::vector<float> & values) {
                return values.empty() ? nullptr : values.data();
            };
            router.set_router(layer, gate.data(), (int) n_embd, pointer(bias), pointer(norm),
                              pointer(norm_before));
            found++;
        }
        norm_before = norm;
    }
    return found > 1 ? std::make_unique<expert_ahead>(cache, std::move(router)) : nullptr;
}

bool on_wanted(const char * name, const ggml_tensor * meta) {
    return meta->ne[2] > 1 && expert_tensor_layer(name) >= 0;
}

void on_placed(const ggml_tensor * tensor, int fd, size_t offset) {
    const int layer = expert_tensor_layer(tensor->name);
    if (layer < 0) {
        return; // lazy for reasons of upstream's own
    }
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    int file = 0;
    while (file < (int) all.files.size() && !all.files[file]->same_as(fd)) {
        file++;
    }
    const char * base = (const char *) tensor->data - offset;
    if (file == (int) all.files.size()) {
        all.files.push_back(std::make_unique<expert_file>(fd));
        all.files.back()->use_page_cache(base);
    }
    expert_matrix matrix;
    matrix.name = tensor->name;
    matrix.layer = layer;
    matrix.n_expert = (int) tensor->ne[2];
    matrix.file = file;
    matrix.offset = offset;
    matrix.slice_bytes = tensor->nb[2];
    matrix.mapped = (const char *) tensor->data;
    all.placed.push_back(matrix);
}

void on_loaded(const void * model) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    if (all.options.any()) {
        start_tracking(model);
    }
    if (!all.options.residency) {
        return;
    }
    if (all.placed.empty()) {
        if (all.models.empty()) {
            LOG_WRN("%s", "experts: this model has none, so --expert-residency changes nothing\n");
        }
        return;
    }
    expert_layout layout(std::move(all.placed));
    auto files = std::move(all.files);
    all.placed.clear();
    all.files.clear();

    forget_dense(layout, files);

    // Models of one process share the budget by their size.
    uint64_t total = layout.total_bytes;
    for (const auto & entry : all.models) {
        total += entry.cache->layout().total_bytes;
    }
    const auto share = [&](uint64_t bytes) {
        return (uint64_t) ((double) all.options.budget_bytes * ((double) bytes / (double) total));
    };
    for (auto & entry : all.models) {
        entry.cache->shrink(share(entry.cache->layout().total_bytes));
    }
    expert_cache_options options;
    options.budget_bytes =
        all.options.budget_bytes > 0 ? std::max<uint64_t>(1, share(layout.total_bytes)) : 0;
    options.n_threads = all.options.n_threads;
    options.warn = [](const std::string & text) { LOG_WRN("experts: %s\n", text.c_str()); };
    auto cache = std::make_unique<expert_cache>(std::move(layout), std::move(files), options);
    const auto & shape = cache->layout();
    const double mib = 1 << 20;
    if (options.budget_bytes == 0) {
        LOG_INF("experts: %.0f MiB on disk, the kernel decides what stays in memory\n",
                (double) shape.total_bytes / mib);
    } else {
        LOG_INF("experts: %.0f MiB on disk, %.0f MiB of memory for them, read %s the page cache\n",
                (double) shape.total_bytes / mib, (double) cache->memory_bytes() / mib,
                cache->direct() ? "past" : "through");
        if (cache->memory_bytes() > options.budget_bytes) {
            LOG_WRN("experts: %.0f MiB is the least that works, --expert-budget-mib says less\n",
                    (double) cache->memory_bytes() / mib);
        }
    }
    std::vector<double> rates;
    if (const auto stats = expert_tracking_stats(); stats && model == all.tracked) {
        rates = stats->rates();
        if (stats->shape().n_expert == shape.n_expert) {
            rates.resize(shape.n_units());
        } else {
            rates.clear();
        }
    }
    cache->seed(rates);
    if (all.options.prewarm) {
        cache->prewarm(rates);
    }
    auto ahead = options.budget_bytes > 0 ? make_ahead(model, *cache) : nullptr;
    all.models.push_back({model, std::move(cache), std::move(ahead)});
    rebuild_table();
}

void on_unloaded(const void * model) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.placed.clear();
    all.files.clear();
    for (size_t i = 0; i < all.models.size(); i++) {
        if (all.models[i].model == model) {
            auto gone = std::move(all.models[i]);
            all.models.erase(all.models.begin() + (long) i);
            rebuild_table();
            gone.ahead.reset(); // joins its thread
            gone.cache.reset(); // and these
            break;
        }
    }
    if (all.tracked == model) {
        all.sampler.reset();
        expert_tracking_stop();
        all.tracked = nullptr;
    }
}

void on_need(const ggml_tensor * weights, const ggml_tensor * input, const ggml_tensor * ids,
             const int64_t * rows, int n_threads) {
    auto & all = state();
    expert_routing routing;
    routing.n_expert = (int) weights->ne[2];
    routing.n_used = (int) ids->ne[0];
    routing.n_tokens = (int) ids->ne[1];
    routing.rows = rows;
    routing.ids = (const int32_t *) ids->data;
    routing.ids_stride = (int64_t) (ids->nb[1] / sizeof(int32_t));
    size_t offset = 0;
    if (const auto * known = find(weights, offset)) {
        routing.layer = known->cache->layout().matrices[known->matrix].layer;
        known->cache->need(known->matrix, routing, n_threads);
        if (known->ahead && known->cache->at_layer_start() && input->type == GGML_TYPE_F32 &&
            input->ne[1] == 1) {
            known->ahead->chosen(routing, (const float *) input->data, (int) input->ne[0]);
        }
    } else {
        routing.layer = expert_tensor_layer(weights->name);
    }
    if (routing.layer >= 0 && routing.layer != all.layer) {
        all.layer = routing.layer;
        if (all.asked) {
            expert_tracking_observe(routing);
        }
    }
}

const int32_t * on_order(const ggml_tensor * weights) {
    size_t offset = 0;
    const auto * known = find(weights, offset);
    return known ? known->cache->order() : nullptr;
}

const char * on_slice(const ggml_tensor * weights, int64_t expert, int thread, const char * data) {
    size_t offset = 0;
    const auto * known = find(weights, offset);
    return known ? known->cache->slice(known->matrix, (int) expert, thread) + offset : data;
}

void on_compute(ggml_backend_sched * sched) {
    auto & all = state();
    if (all.sampler) {
        const auto stats = expert_tracking_stats();
        all.sampler->before(sched, all.asked && stats && stats->enabled());
    }
}

int on_computed(int status) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.layer = -1;
    for (auto & entry : all.models) {
        std::string why;
        if (!entry.cache->finish(why)) {
            LOG_ERR("experts: %s\n", why.c_str());
            all.failure = all.last_error = why;
            status = GGML_STATUS_FAILED;
        }
    }
    return status;
}

std::string on_decode_error(const std::string & upstream) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    if (upstream.empty() || all.failure.empty()) {
        return upstream;
    }
    std::string text = "The model's experts could not be read: " + all.failure;
    all.failure.clear();
    return text;
}

expert_counters counters_now() {
    expert_counters sum;
    for (const auto & entry : state().models) {
        const auto one = entry.cache->counters();
        sum.hits += one.hits;
        sum.misses += one.misses;
        sum.read_bytes += one.read_bytes;
        sum.read_ns += one.read_ns;
        sum.stall_ns += one.stall_ns;
        sum.evictions += one.evictions;
        sum.predicted += one.predicted;
        sum.predicted_used += one.predicted_used;
        sum.tokens += one.tokens;
        sum.failed_reads += one.failed_reads;
        sum.resident_bytes += one.resident_bytes;
        sum.resident_units += one.resident_units;
    }
    return sum;
}

void on_request_started(int slot_id) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.asked = true;
    if (slot_id >= 0 && !all.models.empty()) {
        all.slots.resize(std::max(all.slots.size(), (size_t) slot_id + 1));
        all.slots[slot_id] = {true, counters_now()};
    }
}

void on_request_finished(int slot_id) {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    if (slot_id >= 0 && slot_id < (int) all.slots.size() && all.slots[slot_id].running) {
        all.slots[slot_id].running = false;
        const std::string text = expert_summary(all.slots[slot_id].before, counters_now());
        LOG_INF("experts: slot %d: %s\n", slot_id, text.c_str());
    }
}

} // namespace

void install_experts(const expert_options & options, common_params & params) {
    if (!options.any()) {
        return;
    }
    state().options = options;
    auto & table = llama_ai_expert_hooks;
    table.loaded = on_loaded;
    table.unloaded = on_unloaded;
    table.need = on_need;
    table.compute = on_compute;
    table.computed = on_computed;
    hooks.request_started = on_request_started;
    if (options.residency) {
        table.wanted = on_wanted;
        table.placed = on_placed;
        table.order = on_order;
        table.slice = on_slice;
        hooks.decode_error = on_decode_error;
        hooks.request_finished = on_request_finished;
        params.load_mode = LLAMA_LOAD_MODE_NONE;
        params.warmup = false;
        params.no_op_offload = true;
    }
}

void finish_experts() {
    expert_tracking_stop();
}

expert_report expert_status() {
    auto & all = state();
    std::lock_guard<std::mutex> guard(all.mutex);
    expert_report result;
    result.enabled = all.options.residency;
    result.models = (int) all.models.size();
    result.budget_bytes = all.options.budget_bytes;
    result.last_error = all.last_error;
    for (const auto & entry : all.models) {
        const auto & shape = entry.cache->layout();
        result.units += std::accumulate(shape.class_units.begin(), shape.class_units.end(), 0u);
        result.total_bytes += shape.total_bytes;
        result.memory_bytes += entry.cache->memory_bytes();
        result.direct = result.direct && entry.cache->direct();
    }
    result.counters = counters_now();
    return result;
}

} // namespace llama_ai
