#include "routes.h"

#include "build_info.h"
#include "hooks.h"
#include "kv_tiers.h"
#include "server-context.h"
#include "server-http.h"

#include <nlohmann/json.hpp>

#include <exception>

namespace llama_ai {

static server_http_res_ptr get_build_info(const server_http_req &) {
    auto response = std::make_unique<server_http_res>();
    try {
        response->data = read_build_info(executable_dir());
    } catch (const std::exception & error) {
        response->status = 503; // upstream's server replaces the body of every 404
        response->data =
            nlohmann::json(
                {
                    {"error",
                     {{"code", 503}, {"message", error.what()}, {"type", "unavailable_error"}}},
                })
                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    return response;
}

static server_http_res_ptr get_kv_cache(const server_http_req &) {
    auto response = std::make_unique<server_http_res>();
    response->data = kv_status_json();
    return response;
}

static server_http_res_ptr delete_kv_cache(const server_http_req & request) {
    auto response = std::make_unique<server_http_res>();
    const int64_t files = kv_clear(request.get_param("all") == "true");
    if (files < 0) {
        response->status = 409;
        response->data =
            R"({"error":{"code":409,"message":"the KV store is off","type":"invalid_request_error"}})";
    } else {
        response->data = nlohmann::json({{"deleted_files", files}}).dump();
    }
    return response;
}

// Appends our metrics to upstream's.
static void extend_metrics(server_routes & handlers) {
    const auto upstream = handlers.get_metrics;
    handlers.get_metrics = [upstream](const server_http_req & request) {
        auto response = upstream(request);
        if (response && response->status == 200 && !response->is_stream()) {
            response->data += kv_metrics_text();
        }
        return response;
    };
}

void install_routes() {
    hooks.routes = [](server_http_context & http, server_routes & handlers, const common_params &) {
        http.get("/build-info", get_build_info);
        http.get("/kv-cache", get_kv_cache);
        http.del("/kv-cache", delete_kv_cache);
        extend_metrics(handlers);
    };
}

} // namespace llama_ai
