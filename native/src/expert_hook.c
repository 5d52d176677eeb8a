#include "expert_hook.h"

struct llama_ai_expert_hooks llama_ai_expert_hooks = {0};
