// Upstream's server library links without our objects, its hooks are null, and it shares our table.

#include "check.h"
#include "expert_hook.h"
#include "hooks.h"

#include "common.h"
#include "server-context.h"

int llama_server(common_params & params, int argc, char ** argv);

static int detached = 0;

int main() {
    CHECK(llama_server != nullptr);
    CHECK(llama_ai::hooks.routes == nullptr);
    CHECK(llama_ai::hooks.kv_attach == nullptr);
    CHECK(llama_ai::hooks.kv_want == nullptr);
    CHECK(llama_ai::hooks.kv_promote == nullptr);
    CHECK(llama_ai::hooks.kv_snapshot == nullptr);
    CHECK(llama_ai::hooks.kv_split == nullptr);
    CHECK(llama_ai::hooks.kv_progress == nullptr);
    CHECK(llama_ai::hooks.kv_checkpoint == nullptr);
    CHECK(llama_ai::hooks.kv_detach == nullptr);
    CHECK(llama_ai::hooks.request_started == nullptr);
    CHECK(llama_ai::hooks.request_finished == nullptr);
    CHECK(llama_ai::hooks.decode_error == nullptr);
    CHECK(llama_ai_expert_hooks.wanted == nullptr && llama_ai_expert_hooks.placed == nullptr);
    CHECK(llama_ai_expert_hooks.loaded == nullptr && llama_ai_expert_hooks.unloaded == nullptr);
    CHECK(llama_ai_expert_hooks.need == nullptr && llama_ai_expert_hooks.order == nullptr);
    CHECK(llama_ai_expert_hooks.slice == nullptr && llama_ai_expert_hooks.computed == nullptr);

    // A server without a model still lets its contexts go when it is destroyed: unhooked that does
    // nothing, hooked it must reach the function that this program set.
    {
        server_context unhooked;
    }
    CHECK(detached == 0);
    llama_ai::hooks.kv_detach = [] { detached++; };
    {
        server_context hooked;
    }
    CHECK(detached > 0);
    return 0;
}
