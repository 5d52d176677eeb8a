// The routes that llama-ai-server adds to upstream's.
#pragma once

namespace llama_ai {

// Sets hooks.routes. GET /build-info: BUILD_INFO.json, or 503 with an error object.
void install_routes();

} // namespace llama_ai
