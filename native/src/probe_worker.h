// Runs measurements in a child process, because the engine may abort on a bad file or on a layout
// that a driver cannot hold.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace llama_ai {

// Calls `work(i)` for i in 0..count-1 in a child process and returns what each call returned. A
// call that ends the child is answered with `died(reason)`, where `reason` holds the signal or
// status and the last lines that the child wrote to stderr; the calls after it run in a new child.
// With `verbose` the child's stderr stays that of this process, and `reason` is only the status.
// The calling process must not have started the engine (drivers do not survive a fork).
// Throws std::runtime_error when no child can be started.
std::vector<std::string> run_isolated(size_t count, bool verbose,
                                      const std::function<std::string(size_t)> & work,
                                      const std::function<std::string(const std::string &)> & died);

} // namespace llama_ai
