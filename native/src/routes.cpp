#include "routes.h"

#include "build_info.h"
#include "hooks.h"
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

void install_routes() {
    hooks.routes = [](server_http_context & http, server_routes &, const common_params &) {
        http.get("/build-info", get_build_info);
    };
}

} // namespace llama_ai
