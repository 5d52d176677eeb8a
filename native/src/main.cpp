// llama-ai-server: upstream's server with our hooks set.

#include "build_info.h"
#include "expert_residency.h"
#include "kv_tiers.h"
#include "own_flags.h"
#include "routes.h"

#include "arg.h"
#include "common.h"
#include "llama.h"
#include "log.h"
#include "server-stream.h"

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <unistd.h>

// Upstream's server after set-up and parsing; no header of upstream declares it. In router mode it
// parses argv once more and starts this same executable for each model.
int llama_server(common_params & params, int argc, char ** argv);

static int serve(std::vector<std::string> & args, const std::map<std::string, std::string> & own) {
    llama_ai::kv_options kv = llama_ai::kv_options_from(own);
    const llama_ai::expert_options experts = llama_ai::expert_options_from(own);
    std::vector<char *> argv;
    for (auto & arg : args) {
        argv.push_back(arg.data());
    }
    argv.push_back(nullptr);
    const int argc = (int) args.size();

    // What upstream's own main does before it gets to the function above, in the same order.
    std::setlocale(LC_NUMERIC, "C");
    std::signal(SIGPIPE, SIG_IGN); // a helper process that dies must not take the server with it
    common_params params;
    common_init();
    server_stream_session_manager_start();
    if (!common_params_parse(argc, argv.data(), params, LLAMA_EXAMPLE_SERVER)) {
        return 1;
    }
    if (own.count("--kv-ram-mib")) {
        params.cache_ram_mib = std::stoi(own.at("--kv-ram-mib"));
    }
    llama_backend_init();
    llama_numa_init(params.numa);

    llama_ai::install_kv(std::move(kv));
    llama_ai::install_experts(experts, params);
    llama_ai::install_routes(own.count("--refused-models") ? own.at("--refused-models") : "");
    const int status = llama_server(params, argc, argv.data());
    llama_ai::finish_experts();
    common_log_flush(common_log_main());
    return status;
}

// While experts are read, threads of GNU OpenMP that wait for others must not keep the readers from
// the CPU: by default they spin for milliseconds, which costs a third of the speed on two cores.
// The library looks at this variable when it is loaded, which was before main().
static void spin_less(char ** argv) {
#if defined(__linux__)
    if (!std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY")) {
        setenv("GOMP_SPINCOUNT", "2000", 1);
        execv("/proc/self/exe", argv); // goes on as it is where that fails
    }
#else
    (void) argv;
#endif
}

int main(int argc, char ** argv) {
    try {
        auto args = llama_ai::split({argv, argv + argc}, llama_ai::own_flags());
        if (args.own.count("--build-info")) {
            std::fputs(llama_ai::read_build_info(llama_ai::executable_dir()).c_str(), stdout);
            return 0;
        }
        for (const auto & word : args.engine) {
            if (word == "-h" || word == "--help" || word == "--usage") {
                std::fputs(llama_ai::own_help().c_str(), stdout); // upstream's follows
                break;
            }
        }
        llama_ai::share_with_children(args.own, llama_ai::own_flags());
        if (args.own.count("--expert-residency")) {
            spin_less(argv);
        }
        return serve(args.engine, args.own);
    } catch (const std::exception & error) {
        std::fprintf(stderr, "llama-ai-server: %s\n", error.what());
        return 1;
    }
}
