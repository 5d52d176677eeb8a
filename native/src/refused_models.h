// Models that the router lists but must not start, because they do not fit this machine.
#pragma once

#include <string>

struct server_routes;

namespace llama_ai {

// Wraps the router's handlers: a request for one of the names in `file` (a JSON object: name or
// alias -> reason) is answered with 400 and the reason. Upstream's router would first unload
// another model to make room, and then fail.
// Throws std::runtime_error when the file cannot be read or is not such an object.
void refuse_models(server_routes & handlers, const std::string & file);

} // namespace llama_ai
