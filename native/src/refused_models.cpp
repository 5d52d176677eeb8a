#include "refused_models.h"

#include "server-context.h"
#include "server-http.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>

namespace llama_ai {

using reasons = std::map<std::string, std::string>;

static reasons read_reasons(const std::string & file) {
    std::ifstream stream(file);
    const auto document = nlohmann::json::parse(stream, nullptr, false);
    reasons result;
    if (!document.is_object()) {
        throw std::runtime_error("--refused-models: not a JSON object: " + file);
    }
    for (const auto & [name, reason] : document.items()) {
        if (!reason.is_string()) {
            throw std::runtime_error("--refused-models: the reason of " + name + " is not text");
        }
        result[name] = reason.get<std::string>();
    }
    return result;
}

// Empty where the request names no model: upstream has its own words for that.
static std::string model_of(const server_http_req & request) {
    if (request.body.empty()) {
        return request.get_param("model");
    }
    const auto body = nlohmann::json::parse(request.body, nullptr, false);
    const bool named = body.is_object() && body.contains("model") && body["model"].is_string();
    return named ? body["model"].get<std::string>() : "";
}

static server_http_res_ptr refusal(const std::string & name, const std::string & reason) {
    auto response = std::make_unique<server_http_res>();
    response->status = 400;
    const nlohmann::json error = {{"code", 400},
                                  {"message", name + " does not fit this machine: " + reason},
                                  {"type", "invalid_request_error"}};
    response->data = nlohmann::json{{"error", error}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
    return response;
}

void refuse_models(server_routes & handlers, const std::string & file) {
    const auto refused = std::make_shared<const reasons>(read_reasons(file));
    if (refused->empty()) {
        return;
    }
    for (auto * handler : {&handlers.get_metrics,
                           &handlers.get_slots,
                           &handlers.post_slots,
                           &handlers.post_props,
                           &handlers.post_infill,
                           &handlers.post_completions,
                           &handlers.post_completions_oai,
                           &handlers.post_chat_completions,
                           &handlers.post_chat_completions_tok,
                           &handlers.post_control,
                           &handlers.post_responses_oai,
                           &handlers.post_responses_tok_oai,
                           &handlers.post_anthropic_messages,
                           &handlers.post_anthropic_count_tokens,
                           &handlers.post_apply_template,
                           &handlers.post_tokenize,
                           &handlers.post_detokenize,
                           &handlers.post_embeddings,
                           &handlers.post_embeddings_oai,
                           &handlers.post_rerank,
                           &handlers.get_lora_adapters,
                           &handlers.post_lora_adapters}) {
        const auto upstream = *handler;
        *handler = [refused, upstream](const server_http_req & request) {
            const auto found = refused->find(model_of(request));
            return found == refused->end() ? upstream(request)
                                           : refusal(found->first, found->second);
        };
    }
}

} // namespace llama_ai
