// The routes that llama-ai-server adds to upstream's.
#pragma once

#include <string>

namespace llama_ai {

// Sets hooks.routes. GET /build-info: BUILD_INFO.json, or 503 with an error object. GET /kv-cache:
// the KV store and its counters. DELETE /kv-cache: drops this model's files, with ?all=true every
// model's. GET /metrics: ours after upstream's. A router refuses the models in the file
// `refused_models` (see refused_models.h); empty for none.
void install_routes(std::string refused_models);

} // namespace llama_ai
