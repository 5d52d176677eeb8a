"""What the machine does: load, clock, heat, power, and what the engine's process takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import EIGHTHS, size, width_of
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Cpu, Engine, Gpu, Sample
    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown

HOT_C = 90.0
"""Near where these chips slow down (their limit is 95 to 100 °C)."""


class HardwarePanel(Panel):
    """Groups of figures, as many on a line as there is room for."""

    def lines(self, width: int, height: int) -> list[Line]:
        return hardware_lines(self.shown, width)[:height]


def hardware_lines(shown: Shown, width: int) -> list[Line]:
    """The groups, wrapped at ``width``."""
    if shown.look is None:
        return []
    lines: list[Line] = []
    for group in _groups(shown.look.sample):
        joined: Line = (*lines[-1], ("   ", "text"), *group) if lines else group
        if lines and width_of(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(group)
    return lines


def _groups(sample: Sample) -> list[Line]:
    groups = [] if sample.gpu is None else [_gpu(sample.gpu)]
    groups.append(_cpu(sample.cpu))
    engine = _engine(sample.engine)
    return [*groups, engine] if engine else groups


def _gpu(gpu: Gpu) -> Line:
    figures: list[Span] = [("GPU ".ljust(6), "label")]
    figures.append((_or_dash(gpu.busy_percent, "{:.0f}%").rjust(4), "value"))
    for value, form in (
        (gpu.freq_mhz, "{:.0f} MHz"),
        (gpu.temp_c, "{:.0f}°C"),
        (gpu.power_w, "{:.1f} W"),
    ):
        if value is not None:
            hot = form == "{:.0f}°C" and value >= HOT_C
            figures += [
                (" ", "text"),
                (form.format(value) + ("!" if hot else ""), "bad" if hot else "value"),
            ]
    return tuple(figures)


def _cpu(cpu: Cpu) -> Line:
    figures: list[Span] = [("CPU ".ljust(6), "label")]
    figures.append((_or_dash(cpu.percent, "{:.0f}%").rjust(4), "value"))
    if cpu.cores_percent and len(cpu.cores_percent) <= 32:
        cores = "".join(EIGHTHS[max(1, round(core / 100 * 8))] for core in cpu.cores_percent)
        figures += [(" ", "text"), (cores, "ram")]
    if cpu.temp_c is not None:
        hot = cpu.temp_c >= HOT_C
        figures += [(" ", "text"), (f"{cpu.temp_c:.0f}°C" + "!" * hot, "bad" if hot else "value")]
    return tuple(figures)


def _engine(engine: Engine) -> Line:
    if engine.rss_bytes is None:
        return ()
    figures: list[Span] = [("engine", "label")]
    figures.append((" " + _or_dash(engine.cpu_percent, "{:.0f}% CPU"), "value"))
    figures.append((f" {size(engine.rss_bytes)}", "value"))
    if engine.disk_read_bytes_per_s is not None:
        figures += [
            (" disk ", "label"),
            (f"↓{size(engine.disk_read_bytes_per_s)}/s", "value"),
            (f" ↑{size(engine.disk_write_bytes_per_s)}/s", "value"),
        ]
    return tuple(figures)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
