// What makes a stored state valid: the model, and every setting that its state depends on.
#pragma once

#include "kv_format.h"

#include "common.h"

namespace llama_ai {

// `draft` is null without speculation. Reads samples of the model's files.
kv_key make_fingerprint(const common_params & params, llama_context * target,
                        llama_context * draft);

} // namespace llama_ai
