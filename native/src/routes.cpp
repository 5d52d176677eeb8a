#include "routes.h"

#include "build_info.h"
#include "expert_residency.h"
#include "expert_tracking.h"
#include "hooks.h"
#include "kv_tiers.h"
#include "refused_models.h"
#include "server-context.h"
#include "server-http.h"

#include "common.h"

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

static server_http_res_ptr get_residency(const server_http_req &) {
    auto response = std::make_unique<server_http_res>();
    response->data = expert_residency_json();
    return response;
}

static server_http_res_ptr get_expert_stats(const server_http_req &) {
    auto response = std::make_unique<server_http_res>();
    response->data = expert_stats_response(response->status);
    return response;
}

static server_http_res_ptr post_expert_tracking(const server_http_req & request) {
    auto response = std::make_unique<server_http_res>();
    response->data = expert_tracking_response(request.body, response->status);
    return response;
}

// Appends our metrics to upstream's.
static void extend_metrics(server_routes & handlers) {
    const auto upstream = handlers.get_metrics;
    handlers.get_metrics = [upstream](const server_http_req & request) {
        auto response = upstream(request);
        if (response && response->status == 200 && !response->is_stream()) {
            response->data += kv_metrics_text() + expert_metrics_text();
        }
        return response;
    };
}

static std::string refused_file; // a hook is a plain function

void install_routes(std::string refused_models) {
    refused_file = std::move(refused_models);
    hooks.routes = [](server_http_context & http, server_routes & handlers,
                      const common_params & params) {
        // The router is the process without a model; its children inherit our flags.
        if (!refused_file.empty() && params.model.path.empty()) {
            refuse_models(handlers, refused_file);
        }
        http.get("/build-info", get_build_info);
        http.get("/kv-cache", get_kv_cache);
        http.del("/kv-cache", delete_kv_cache);
        http.get("/residency", get_residency);
        http.get("/expert-stats", get_expert_stats);
        http.post("/expert-tracking", post_expert_tracking);
        extend_metrics(handlers);
    };
}

} // namespace llama_ai
