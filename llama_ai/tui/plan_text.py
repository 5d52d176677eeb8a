"""The plan in words: what was chosen, from where, why, its memory, and what was rejected. Pure.

The plan is the object of ``profile --format json``; any part of it may be absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_ai.monitor.parse import clean
from llama_ai.tui.draw import size, wrap
from solver.types import PART_LABELS

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Sample
    from llama_ai.tui.draw import Line

_PARTS = (*PART_LABELS, ("total", "total_bytes"), ("budget", "budget_bytes"))


def plan_lines(plan: Mapping[str, Any] | None, sample: Sample | None, width: int) -> list[Line]:
    """All of it, wrapped at ``width``."""
    lines: list[Line] = [(("PLAN", "title"), ("  why this server runs as it does", "label")), ()]
    instance = None if sample is None else sample.instance
    if plan is None:
        why = (
            "This server was not started by llama-ai on this machine, so there is no plan to show."
            if instance is None
            else "Its supervisor did not keep the plan; `llama-ai profile MODEL` solves it again."
        )
        lines += _wrapped(why, width, "text")
        if instance is not None and instance.summary:
            lines += _wrapped(f"In short: {instance.summary}", width, "value")
        return lines
    lines += _head(plan, width)
    lines += _reasons(plan, width)
    lines += _memory(plan)
    lines += _rejected(plan, width)
    return lines


def _head(plan: Mapping[str, Any], width: int) -> list[Line]:
    model, machine = _object(plan.get("model")), _object(plan.get("machine"))
    words = [
        _text(model.get("name")),
        _text(model.get("arch")),
        "MoE" if model.get("moe") else "dense",
        f"{model.get('n_layer')} layers" if model.get("n_layer") else "",
        size(model.get("size_bytes")) if isinstance(model.get("size_bytes"), int) else "",
    ]
    lines = _wrapped("model    " + ", ".join(word for word in words if word), width, "value")
    where = [_text(machine.get(key)) for key in ("device", "gfx", "backend")]
    tier = _text(machine.get("tier"))
    told = ", ".join([word for word in where if word] + ([f"tier {tier}"] if tier else []))
    return [*lines, *_wrapped("machine  " + (told or "?"), width, "value"), ()]


def _reasons(plan: Mapping[str, Any], width: int) -> list[Line]:
    sources = _object(plan.get("sources"))
    rows = [
        (
            _text(reason.get("setting")),
            _text(reason.get("value")),
            _text(sources.get(str(reason.get("setting")))) or "solver",
            _text(reason.get("why")),
        )
        for reason in _list(plan.get("reasons"))
    ]
    if not rows:
        return []
    widths = [
        max(len(row[column]) for row in (*rows, ("SETTING", "VALUE", "SOURCE", "")))
        for column in range(3)
    ]
    widths = [min(width_, limit) for width_, limit in zip(widths, (22, 24, 8), strict=True)]
    room = width - sum(widths) - 6
    lines: list[Line] = []
    if room < 24:  # narrow: the reason below its setting
        lines.append((("WHAT, VALUE, SOURCE, WHY", "title"),))
        for name, value, source, why in rows:
            lines.append(((f"{name} ", "label"), (value, "value"), (f"  {source}", "faint")))
            lines += [(("  ", "text"), (piece, "text")) for piece in wrap(why, width - 2, 0)]
        return [*lines, ()]
    titles = [t.ljust(w + 2) for t, w in zip(("SETTING", "VALUE", "SOURCE"), widths, strict=True)]
    lines.append((("".join(titles) + "WHY", "title"),))
    for name, value, source, why in rows:
        pieces = wrap(why, room, 0)
        lines.append(
            (
                (name[: widths[0]].ljust(widths[0] + 2), "label"),
                (value[: widths[1]].ljust(widths[1] + 2), "value"),
                (source[: widths[2]].ljust(widths[2] + 2), "faint"),
                (pieces[0], "text"),
            )
        )
        lines += [((" " * (sum(widths) + 6), "text"), (more, "text")) for more in pieces[1:]]
    return [*lines, ()]


def _memory(plan: Mapping[str, Any]) -> list[Line]:
    memory = _object(plan.get("memory"))
    sides = [
        (name, side)
        for name in ("gpu", "host")
        if any((side := _object(memory.get(name))).get(key) for _, key in _PARTS)
    ]
    if not sides:
        return []
    titles = "MEMORY".ljust(18) + "".join(name.upper().rjust(10) for name, _ in sides)
    lines: list[Line] = [((titles, "title"),)]
    for label, key in _PARTS:
        values = [side.get(key) for _, side in sides]
        if any(values):
            cells = "".join(
                (size(value) if isinstance(value, int) else "-").rjust(10) for value in values
            )
            style = "value" if key in ("total_bytes", "budget_bytes") else "text"
            lines.append(((label.ljust(18), "label"), (cells, style)))
    return [*lines, ()]


def _rejected(plan: Mapping[str, Any], width: int) -> list[Line]:
    rejected = _list(plan.get("rejected"))
    if not rejected:
        return [(("Nothing better was rejected.", "label"),)]
    lines: list[Line] = [((f"REJECTED BEFORE IT ({len(rejected)})", "title"),)]
    for miss in rejected:
        over = miss.get("over_by_bytes")
        text = _text(miss.get("description"))
        if isinstance(over, int):
            text += f": {size(over)} over the {_text(miss.get('where'))} budget"
        lines += _wrapped(text, width, "text")
    return lines


def _wrapped(text: str, width: int, style: str) -> list[Line]:
    return [((piece, style),) for piece in wrap(text, width)]


def _text(value: object) -> str:
    return "" if value is None else clean(str(value))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, Mapping)]
