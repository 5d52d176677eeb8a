"""Ask the engine itself what a layout needs: our ``memory_probe`` measures without allocating."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.engine.capabilities import scrubbed
from llama_ai.errors import EngineNotReadyError, ModelNotFoundError
from llama_ai.run import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from solver.types import Layout

PROGRAM = "memory_probe"
PROBE_TIMEOUT_S = 120

# Exit statuses of memory_probe (native/README.md).
_NO_MODEL = 4
_NOTHING_MEASURED = 5


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one device, or the host, would hold. ``draft_*`` come on top, for speculation."""

    name: str
    """The engine's word for the device; ``host`` for system memory."""
    total_bytes: int | None
    free_bytes: int | None
    model_bytes: int
    context_bytes: int
    """KV cache and recurrent state."""
    compute_bytes: int
    draft_model_bytes: int = 0
    draft_context_bytes: int = 0
    draft_compute_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """The sum of all parts."""
        own = self.model_bytes + self.context_bytes + self.compute_bytes
        draft = self.draft_model_bytes + self.draft_context_bytes + self.draft_compute_bytes
        return own + draft


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One layout's answer: ``error`` (then the rest is empty), or the host and the devices."""

    error: str | None = None
    host: Side | None = None
    devices: tuple[Side, ...] = ()


def measure(
    engine: EngineInfo,
    model: Path,
    layouts: Sequence[Layout],
    *,
    device: str | None,
    env: Mapping[str, str],
    draft: tuple[str, Path] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> tuple[Measured, ...] | None:
    """What the engine needs for each of ``layouts``, in order; ``None`` if it has no probe.

    ``device`` is the engine's name of the device to use (``None``: the CPU alone), ``env`` the
    environment that the engine would be started with, ``draft`` the engine's word for the kind of
    a draft file (``draft-dflash``) and its path, for layouts that load one. Raises
    :class:`~llama_ai.errors.ModelNotFoundError` for a model that cannot be read and
    :class:`~llama_ai.errors.EngineNotReadyError` when the probe fails or hangs.
    """
    program = engine.directory / PROGRAM
    if not program.is_file():
        return None
    asked = [layout_words(layout, device, draft) for layout in layouts]
    done = run(
        [program, model],
        env=scrubbed(env),
        stdin=json.dumps(asked),
        timeout_s=timeout_s,
        check=False,
    )
    if done.returncode == _NO_MODEL:
        raise ModelNotFoundError(f"the engine cannot read {model}")
    if done.returncode not in {0, _NOTHING_MEASURED}:
        raise EngineNotReadyError(
            f"the memory probe ended with status {done.returncode}",
            details=tuple(done.errors.strip().splitlines()[-5:]),
        )
    try:
        answers = json.loads(done.output)["layouts"]
        measured = tuple(_measured(answer) for answer in answers)
    except (ValueError, KeyError, TypeError) as error:
        said = done.errors.strip().splitlines()[-5:]
        raise EngineNotReadyError(
            "the memory probe gave no answer that can be read", details=tuple(said)
        ) from error
    if len(measured) != len(layouts):
        raise EngineNotReadyError(
            f"the memory probe answered {len(measured)} of {len(layouts)} layouts"
        )
    return measured


def layout_words(
    layout: Layout, device: str | None, draft: tuple[str, Path] | None = None
) -> dict[str, object]:
    """A layout in the probe's words, which are the server's flags; everything is said."""
    words: dict[str, object] = {
        "ctx_size": layout.ctx_size,
        "cache_type_k": layout.kv_type_k,
        "cache_type_v": layout.kv_type_v,
        "parallel": layout.n_parallel,
        "kv_unified": layout.kv_unified,
        "batch_size": layout.batch,
        "ubatch_size": layout.ubatch,
        "device": device or "none",
        "gpu_layers": layout.gpu_layers,
        "flash_attn": "on" if layout.flash_attn else "off",
        "swa_full": layout.swa_full,
        "load_mode": layout.load_mode,
        "repack": layout.repack,
    }
    if not layout.op_offload:
        words["op_offload"] = False
    if layout.n_cpu_moe:
        words["n_cpu_moe"] = layout.n_cpu_moe
    if layout.mtp:
        words["spec_type"] = "draft-mtp"
        words["spec_draft_n_max"] = layout.mtp_n_max
    elif layout.draft_file and draft is not None:
        words["spec_type"], words["spec_draft_model"] = draft[0], str(draft[1])
        words["spec_draft_n_max"] = layout.mtp_n_max
        words["spec_draft_device"] = device or "none"
        words["spec_draft_ngl"] = 999 if layout.gpu_layers else 0
    return words


def _measured(answer: Mapping[str, object]) -> Measured:
    if "error" in answer:
        return Measured(error=str(answer["error"]))
    devices = answer["devices"]
    if not isinstance(devices, list):
        raise TypeError("devices")
    return Measured(
        host=_side(answer["host"], "host"), devices=tuple(_side(row, None) for row in devices)
    )


def _side(row: object, name: str | None) -> Side:
    if not isinstance(row, dict):
        raise TypeError("row")
    draft = row.get("draft") or {}
    return Side(
        name=name or str(row["name"]),
        total_bytes=row["total_bytes"],
        free_bytes=row["free_bytes"],
        model_bytes=int(row["model_bytes"]),
        context_bytes=int(row["context_bytes"]),
        compute_bytes=int(row["compute_bytes"]),
        draft_model_bytes=int(draft.get("model_bytes", 0)),
        draft_context_bytes=int(draft.get("context_bytes", 0)),
        draft_compute_bytes=int(draft.get("compute_bytes", 0)),
    )
