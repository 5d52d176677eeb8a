// One layout of the memory probe: JSON -> upstream's parameters, through upstream's own options.
#pragma once

#include "common.h"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>

namespace llama_ai {

// The parameters with which the server would load `model` when started with the flags that `layout`
// names, after everything that the server itself does to them before it loads: four unified slots
// when `parallel` is not given, and one row of logits per slot instead of a whole batch.
//
// A key of `layout` is the server's long flag in snake case ("ctx_size": 8192). A value is a
// string or a number; true or false for a switch; an array for a comma-separated list; null means
// "not given". Environment variables and config files of upstream are not read.
// Throws std::invalid_argument naming the key for one that has nothing to do with memory, and for
// a value that upstream refuses.
std::unique_ptr<common_params> params_of_layout(const std::string & model,
                                                const nlohmann::json & layout);

// The part of `layout` (an object) that decides how the model itself is loaded. Layouts that agree
// in it differ in their contexts only.
std::string model_key_of_layout(const nlohmann::json & layout);

} // namespace llama_ai
