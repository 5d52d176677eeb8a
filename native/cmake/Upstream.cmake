# Upstream as a subdirectory. Only what our targets need is built (EXCLUDE_FROM_ALL).

set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON) # a missing driver library then costs one backend, not the engine
set(GGML_VULKAN ${LLAMA_AI_VULKAN})
set(GGML_HIP ${LLAMA_AI_HIP})
set(GGML_METAL ${LLAMA_AI_METAL})
set(GGML_METAL_EMBED_LIBRARY ${LLAMA_AI_METAL})
set(GGML_BLAS OFF) # otherwise on by default on Apple
set(GGML_RPC ON)
set(GGML_CCACHE OFF) # the caller chooses a compiler launcher

set(LLAMA_BUILD_COMMON ON)
set(LLAMA_BUILD_TOOLS ON)
set(LLAMA_BUILD_SERVER ON)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP OFF)
set(LLAMA_BUILD_UI OFF)         # needs Node
set(LLAMA_USE_PREBUILT_UI OFF)  # would download
set(LLAMA_OPENSSL OFF)
set(LLAMA_TOOLS_INSTALL OFF)

# Upstream asks git for these; the prepared tree may lie inside somebody else's repository.
string(SUBSTRING "${LLAMA_AI_UPSTREAM_COMMIT}" 0 9 LLAMA_BUILD_COMMIT)
set(LLAMA_BUILD_NUMBER 0)

add_subdirectory("${LLAMA_AI_UPSTREAM}" upstream EXCLUDE_FROM_ALL)

if(LLAMA_AI_VULKAN)
    # With a glslc that lacks an extension some shaders come out empty, and their generator then
    # writes no dependency file: without one ninja would make them, and link again, every time.
    set(shader_outputs "${CMAKE_BINARY_DIR}/upstream/ggml/src/ggml-vulkan")
    file(GLOB shaders "${LLAMA_AI_UPSTREAM}/ggml/src/ggml-vulkan/vulkan-shaders/*.comp")
    foreach(shader IN LISTS shaders)
        get_filename_component(name "${shader}" NAME)
        set(output "${shader_outputs}/${name}.cpp")
        if(NOT EXISTS "${output}.d")
            file(WRITE "${output}.d" "${output}: ${shader}\n")
        endif()
    endforeach()
endif()

if(NOT GGML_NATIVE AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    # The switches of HostCpu.cmake choose the instruction set; this adds the tuning.
    target_compile_options(ggml-cpu PRIVATE -mtune=native)
endif()

set(engine_tools llama-bench llama-fit-params ggml-rpc-server)
if(LLAMA_AI_STOCK)
    list(APPEND engine_tools llama-server)
endif()
add_custom_target(engine-tools ALL)
add_dependencies(engine-tools ${engine_tools})

# Writes small GGUF files of every architecture: the tests' zoo. Built on request.
add_executable(test-llama-archs EXCLUDE_FROM_ALL
    "${LLAMA_AI_UPSTREAM}/tests/test-llama-archs.cpp" tests/load_backends.cpp)
target_link_libraries(test-llama-archs PRIVATE llama llama-common)
