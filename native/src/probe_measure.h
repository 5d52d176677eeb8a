// How much memory a model and its contexts need, without allocating it.
#pragma once

#include "common.h"
#include "llama-cpp.h"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>

namespace llama_ai {

class prober {
public:
    // Builds the model and its contexts as the server would, allocating none of their memory:
    //
    //   {"ctx_size", "ctx_size_train", "layers", "experts",
    //    "devices": [{"name", "description", "total_bytes", "free_bytes", <memory>, "draft":
    //    {<memory>}}], "host": {"total_bytes", "free_bytes", <memory>, "draft": {<memory>}}}
    //
    // <memory> is "model_bytes", "context_bytes", "compute_bytes". "draft" is there with a draft
    // model or an MTP context, and is not part of the row's own figures; the weights of an MTP
    // context are the model's own. Weights that the CPU repacks are part of the host. Total and
    // free are null when the driver does not tell.
    // The model is kept: a call whose `model_key` is that of the call before only makes new
    // contexts. Throws std::runtime_error when the engine cannot load the file or make a context.
    nlohmann::json measure(std::unique_ptr<common_params> params, const std::string & model_key);

private:
    std::unique_ptr<common_params> loaded_with; // the model points into it
    llama_model_ptr model;
    std::string key;
};

} // namespace llama_ai
