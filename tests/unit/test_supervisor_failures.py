"""The table of log needles, line by line as the programs print them."""

# ruff: noqa: E501 - real log lines are long

from __future__ import annotations

import signal

import pytest

from llama_ai.supervisor.failures import Kind, Match, cause, classify_exit, scan
from llama_ai.supervisor.state import State

# Printed by the engine at the pin on the development machine, unless a comment says otherwise.
LINES: list[tuple[Kind, str]] = [
    (
        Kind.PORT_IN_USE,
        "0.00.150.138 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9313",
    ),
    (Kind.BAD_FLAG, "error: invalid argument: --nonsense"),
    (Kind.BAD_FLAG, 'error while handling argument "-c": stoi'),
    (
        Kind.BAD_MODEL,
        "0.00.111.044 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete",
    ),
    (
        Kind.BAD_MODEL,
        "0.00.133.668 E gguf_init_from_file: failed to open GGUF file 'nothere.gguf' (No such file or directory)",
    ),
    (
        Kind.BAD_MODEL,
        "0.00.065.139 E gguf_init_from_reader: invalid magic characters: 'garb', expected 'GGUF'",
    ),
    (
        Kind.BAD_MODEL,
        "0.00.121.417 E srv  llama_server: exiting due to model loading error",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "0.00.108.311 E ggml_aligned_malloc: insufficient memory (attempted to allocate 720.00 MB)",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "0.00.108.364 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 754974720",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "0.00.108.387 E alloc_tensor_range: failed to allocate CPU buffer of size 754974720",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "0.00.108.532 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ),
    # glibc's loader.
    (
        Kind.ENGINE_BROKEN,
        "llama-ai-server: error while loading shared libraries: libggml.so.0: cannot open shared object file: No such file or directory",
    ),
    # ggml-vulkan's and vulkan.hpp's texts.
    (Kind.DEVICE_LOST, "ggml_vulkan: device lost on Vulkan0"),
    (
        Kind.DEVICE_LOST,
        "ggml_vulkan: device lost on Vulkan0, likely caused by previous submission (nodes 12 to 40):",
    ),
    (
        Kind.DEVICE_LOST,
        "1.02.003.004 E srv  update_slots: decode() failed: vk::Queue::submit: ErrorDeviceLost",
    ),
    (Kind.DEVICE_LOST, "  what():  vk::Device::getFenceStatus: ErrorDeviceLost"),
    (Kind.DEVICE_LOST, "terminate called after throwing an instance of 'vk::DeviceLostError'"),
    (
        Kind.OUT_OF_MEMORY,
        "llama_model_load: error loading model: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "ggml_gallocr_reserve_n_impl: failed to allocate Vulkan0 buffer of size 4294967296",
    ),
    (
        Kind.OUT_OF_MEMORY,
        "llama_model_load: error loading model: unable to allocate Vulkan0 buffer",
    ),
    (Kind.OUT_OF_MEMORY, "graph_reserve: failed to allocate compute pp buffers"),
    # ggml-cuda, built for HIP or CUDA.
    (
        Kind.OUT_OF_MEMORY,
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20480.00 MiB on device 0: cudaMalloc failed: out of memory",
    ),
    (Kind.OUT_OF_MEMORY, "ROCm error: out of memory"),
    (Kind.OUT_OF_MEMORY, "CUDA error: out of memory"),
    (Kind.GPU_FAULT, "ROCm error: unspecified launch failure"),
    (Kind.ENGINE_BROKEN, "ROCm error: invalid device function"),
    # ROCr.
    (
        Kind.GPU_FAULT,
        "Memory access fault by GPU node-1 (Agent handle: 0x55d2c1a0) on address 0x7f21a4000000. Reason: Page not present or supervisor privilege.",
    ),
    (
        Kind.GPU_TIMEOUT,
        "HW Exception by GPU node-1 (Agent handle: 0x55b5a0) reason :GPU Hang",
    ),
    # Mesa's RADV.
    (Kind.OUT_OF_MEMORY, "radv/amdgpu: Not enough memory for command submission."),
    (
        Kind.GPU_TIMEOUT,
        "radv/amdgpu: The CS has been cancelled because the context is lost. This context is guilty of a hard recovery.",
    ),
    (
        Kind.DEVICE_LOST,
        "radv/amdgpu: The CS has been cancelled because the context is lost. This context is innocent.",
    ),
    # The kernel, when its log is passed on.
    (
        Kind.GPU_TIMEOUT,
        "amdgpu 0000:c4:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    ),
    (Kind.ASSERTION, "/src/ggml/src/ggml.c:3021: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed"),
    (Kind.OUT_OF_MEMORY, "terminate called after throwing an instance of 'std::bad_alloc'"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_real_lines_are_classified(kind: Kind, line: str) -> None:
    block = f"some other line\n{line}\nand another\n".encode()
    found = list(scan(block))
    assert [match.line for match in found] == [line]
    assert found[0].needle.kind is kind


@pytest.mark.parametrize(
    "line",
    [
        "ggml_vulkan: Failed to allocate pinned memory (vk::Device::allocateMemory: ErrorOutOfDeviceMemory)",
        "user: my device lost on the train, what now?",
        "GGML_ASSERT( is a macro",
        "0.00.077.245 I cmn  common_param: common_params_print_info: verbosity = 3",
        "request timeout, trying again",
    ],
)
def test_harmless_lines_are_not(line: str) -> None:
    assert list(scan(line.encode() + b"\n")) == []


def test_bytes_that_are_no_text_do_not_matter() -> None:
    assert [m.needle.kind for m in scan(b"\xff\xfe ggml_vulkan: device lost on Vulkan0\n")] == [
        Kind.DEVICE_LOST
    ]


def matches(*lines: str) -> list[Match]:
    return list(scan("".join(f"{line}\n" for line in lines).encode()))


def test_the_cause_is_the_allocation_not_the_load_that_failed_by_it() -> None:
    found = cause(
        matches(
            "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 99999999",
            "llama_model_load: error loading model: unable to allocate Vulkan0 buffer",
            "srv  llama_server: exiting due to model loading error",
        )
    )
    assert found is not None
    assert found.needle.kind is Kind.OUT_OF_MEMORY


def test_a_lost_device_is_known_while_the_engine_still_lives() -> None:
    (match,) = matches("ggml_vulkan: device lost on Vulkan0")
    assert match.needle.alive
    (match,) = matches("srv  llama_server: exiting due to model loading error")
    assert not match.needle.alive


@pytest.mark.parametrize(
    ("returncode", "oom", "kind"),
    [
        (-signal.SIGKILL, False, Kind.KILLED),
        (-signal.SIGKILL, True, Kind.OUT_OF_MEMORY),
        (-signal.SIGTERM, False, Kind.KILLED),
        (-signal.SIGSEGV, False, Kind.CRASH),
        (-signal.SIGILL, False, Kind.ENGINE_BROKEN),
        (1, False, Kind.EXIT),
        (0, False, Kind.KILLED),
    ],
)
def test_the_exit_status_alone(returncode: int, oom: bool, kind: Kind) -> None:
    failure = classify_exit(returncode, [], State.READY, oom_killed=oom)
    assert failure.kind is kind
    assert failure.message


def test_a_log_line_tells_more_than_the_status() -> None:
    found = matches("/src/ggml.c:3021: GGML_ASSERT(a) failed")
    failure = classify_exit(-signal.SIGABRT, found, State.READY, oom_killed=False)
    assert failure.kind is Kind.ASSERTION
    assert "GGML_ASSERT(a)" in failure.message
