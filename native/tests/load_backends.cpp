// Linked into upstream's model writer, which expects its backends to be built in. Ours are loaded
// at run time: this loads them before its main starts.

#include "ggml-backend.h"

namespace {

struct loader {
    loader() {
        ggml_backend_load_all();
    }
} load_now;

} // namespace
