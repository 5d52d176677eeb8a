"""Machines and models for the solver's tests, small and made up."""

from __future__ import annotations

from hypothesis import strategies as st

from solver.model import Block, Cache, Model, Tensors, Weights
from solver.types import GIB, MIB, Machine

ATTENTION_TENSORS = (
    ("attn_norm.weight", (4096,), 16384),
    ("attn_q.weight", (4096, 4096), 9437184),
    ("attn_k.weight", (4096, 1024), 2359296),
    ("attn_v.weight", (4096, 1024), 2359296),
    ("attn_output.weight", (4096, 4096), 9437184),
    ("ffn_norm.weight", (4096,), 16384),
)
DENSE_TENSORS = (
    *ATTENTION_TENSORS,
    ("ffn_gate.weight", (4096, 14336), 33030144),
    ("ffn_up.weight", (4096, 14336), 33030144),
    ("ffn_down.weight", (14336, 4096), 33030144),
)
MOE_TENSORS = (
    *ATTENTION_TENSORS,
    ("ffn_gate_inp.weight", (4096, 64), 1048576),
    ("ffn_gate_exps.weight", (4096, 1024, 64), 150994944),
    ("ffn_up_exps.weight", (4096, 1024, 64), 150994944),
    ("ffn_down_exps.weight", (1024, 4096, 64), 150994944),
)


def machine(
    *,
    gpu_gib: float | None = 24,
    ram_gib: float = 32,
    reserve_gib: float = 6,
    shared: bool = True,
    cores: int = 8,
    no_residency: str | None = "not this engine",
) -> Machine:
    ram_bytes = int(ram_gib * GIB)
    host_bytes = ram_bytes - int(reserve_gib * GIB)
    return Machine(
        tier="standard" if gpu_gib is not None else "none",
        backend="vulkan" if gpu_gib is not None else "cpu",
        device="Vulkan0" if gpu_gib is not None else None,
        gpu_budget_bytes=None if gpu_gib is None else int(gpu_gib * GIB),
        host_budget_bytes=host_bytes,
        pool_budget_bytes=host_bytes if shared and gpu_gib is not None else None,
        ram_bytes=ram_bytes,
        os_reserve_bytes=int(reserve_gib * GIB),
        cores_physical=cores,
        cores_logical=2 * cores,
        on_ac=True,
        no_residency=no_residency,
    )


def model(
    *,
    n_layer: int = 32,
    layer_mib: int = 128,
    expert_mib: int = 0,
    n_ctx_train: int = 131072,
    kv_width: int = 1024,
) -> Model:
    """A plain transformer; with ``expert_mib`` per layer a MoE of 64 experts, 4 used."""
    moe = expert_mib > 0
    layer = Weights(
        dense=Tensors(total_bytes=layer_mib * MIB), experts=Tensors(total_bytes=expert_mib * MIB)
    )
    return Model(
        name="made up",
        architecture="llama",
        size_bytes=n_layer * (layer_mib + expert_mib) * MIB + 512 * MIB,
        n_ctx_train=n_ctx_train,
        n_layer=n_layer,
        n_layer_nextn=0,
        n_embd=4096,
        n_embd_out=4096,
        n_vocab=32000,
        n_expert=64 if moe else 0,
        n_expert_used=4 if moe else 0,
        n_swa=0,
        mla=False,
        causal=True,
        input=Weights(dense=Tensors(total_bytes=256 * MIB)),
        output=Weights(dense=Tensors(total_bytes=256 * MIB)),
        tied=False,
        layer_weights=(layer,) * n_layer,
        blocks=tuple(
            Block(
                index=index,
                nextn=False,
                sliding=False,
                recurrent=False,
                n_head=32,
                n_head_kv=8,
                head_k=128,
                head_v=128,
                n_expert_used=4 if moe else 0,
                tensors=MOE_TENSORS if moe else DENSE_TENSORS,
            )
            for index in range(n_layer)
        ),
        caches=tuple(
            Cache(layer=index, kind="full", k_width=kv_width, v_width=kv_width)
            for index in range(n_layer)
        ),
        states=(),
        rollback=False,
        mtp=False,
    )


machines = st.builds(
    machine,
    gpu_gib=st.one_of(st.none(), st.integers(1, 112)),
    ram_gib=st.integers(8, 128),
    shared=st.booleans(),
    cores=st.integers(1, 16),
    no_residency=st.sampled_from([None, "not this engine"]),
)

models = st.builds(
    model,
    n_layer=st.integers(1, 40),
    layer_mib=st.integers(1, 512),
    expert_mib=st.one_of(st.just(0), st.integers(16, 2048)),
    n_ctx_train=st.sampled_from([2048, 8192, 32768, 40960, 131072, 262144]),
    kv_width=st.sampled_from([256, 1024, 4096]),
)
