"""Puts a sample together: the machine, the server, the supervisor's word, the log.

:class:`Sampler` looks when it is asked; :mod:`llama_ai.monitor.feed` asks it on a timer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_ai.errors import UsageError
from llama_ai.monitor import host
from llama_ai.monitor.experts import ExpertRates
from llama_ai.monitor.http import Target, parse_target
from llama_ai.monitor.judge import Connection, judge
from llama_ai.monitor.limits import Limits, from_plan
from llama_ai.monitor.logtail import LogTail, SlotFacts
from llama_ai.monitor.parse import clean
from llama_ai.monitor.sample import Engine, Gpu, Instance, Late, Missing, Sample
from llama_ai.monitor.speeds import Speeds, ratio
from llama_ai.monitor.watch import EngineWatch, Reading, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_ai.hardware.root import Root


@dataclass(frozen=True, kw_only=True)
class Found:
    """An instance and, where its supervisor kept it, the plan (``profile --format json``)."""

    instance: Instance
    plan: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """A sample, the log lines that came with it, and the plan that the server runs with."""

    sample: Sample
    log: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None


class Sampler:
    """Looks at the machine and at one server.

    ``find`` gives the supervised instance, or ``None`` while there is none; it is called once a
    sample. Without it, ``target`` is the server, wherever it is. ``gpu`` is ``None`` on a machine
    without a GPU that can be read.
    """

    def __init__(
        self,
        root: Root,
        *,
        gpu: host.GpuReader | None,
        interval_s: float,
        find: Callable[[], Found | None] | None = None,
        target: Target | None = None,
        api_key: str | None = None,
        host_budget_bytes: int | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._find = find
        self._api_key = api_key
        self._gpu = gpu
        self._host_budget_bytes = host_budget_bytes
        self._cpu = host.CpuReader()
        self._cpu_temperature = host.CpuTemperature(root)
        self._process = host.ProcessReader()
        self._speeds = Speeds()
        self._experts = ExpertRates()
        self._facts = SlotFacts()
        self._tail: LogTail | None = None
        self._tail_path: str | None = None
        self._engine_pid: int | None = None
        self._seen: Instance | None = None
        self._target_error: str | None = None
        self.watch = EngineWatch(interval_s)
        self.watch.watch(target)

    def start(self) -> None:
        """Start asking the server."""
        self.watch.start()

    def close(self) -> None:
        """Stop; waits for nothing."""
        self.watch.close()
        if self._tail is not None:
            self._tail.close()

    def look(self) -> Look:
        """Everything now. Waits for no server; sysfs is the slowest thing that it reads."""
        found = self._find() if self._find is not None else None
        instance = self._instance(None if found is None else found.instance)
        plan = None if found is None else found.plan
        limits = from_plan(plan)
        log, missing = self._log(instance)
        view = self.watch.view()
        gpu = self._gpu.read() if self._gpu is not None else None
        if gpu is not None and limits.gpu_budget_bytes is not None:
            gpu = replace(gpu, budget_bytes=limits.gpu_budget_bytes)
        cpu = replace(self._cpu.read(), temp_c=self._cpu_temperature.read())
        engine = self._engine(view, instance, limits)
        sample = Sample(
            at_s=round(time.time(), 3),
            engine=engine,
            gpu=gpu,
            cpu=cpu,
            memory=host.read_memory(limits.host_budget_bytes or self._host_budget_bytes),
            instance=instance,
            missing=(*_missing(view, gpu), *missing),
            late=self._late(view),
        )
        return Look(sample=sample, log=tuple(log), plan=plan)

    def _instance(self, now: Instance | None) -> Instance | None:
        """Follow the supervisor: another address, another engine, or gone."""
        if self._find is None:
            return None
        if now is None:
            self.watch.watch(None)
            gone = self._seen
            if gone is None:
                return None
            # It ended in order: its file is gone. A failed one leaves its file.
            return replace(gone, state="stopped", pid=None, engine_pid=None, detail=None)
        self._seen = now
        try:
            self.watch.watch(parse_target(now.url, self._api_key))
            self._target_error = None
        except UsageError as error:
            self._target_error = error.message
        if now.engine_pid != self._engine_pid:
            self._engine_pid = now.engine_pid
            self._facts.clear()
            self.watch.renew()
        return now

    def _log(self, instance: Instance | None) -> tuple[list[str], list[Missing]]:
        path = None if instance is None else instance.log_path
        if path != self._tail_path:
            if self._tail is not None:
                self._tail.close()
            self._tail = None if path is None else LogTail(path)
            self._tail_path = path
        if self._tail is None:
            why = (
                "it is there only for a server that llama-ai runs on this machine"
                if self._find is None
                else "the server has none yet"
            )
            return [], [Missing(what="log", why=why)]
        lines = self._tail.read()
        for line in lines:
            self._facts.take(line)
        if self._tail.problem is not None:
            return lines, [Missing(what="log", why=self._tail.problem)]
        return lines, []

    def _engine(self, view: View, instance: Instance | None, limits: Limits) -> Engine:
        target = self.watch.target
        state, detail = judge(
            instance,
            view.connection,
            self._target_error or view.detail,
            has_target=target is not None,
        )
        props = view.props.value
        model = (None if props is None else props.model) or (
            None if instance is None else (instance.model or "").rpartition("/")[2] or None
        )
        use = self._process.read(None if instance is None else instance.engine_pid)
        engine = Engine(
            state=state,
            detail=detail,
            connection=view.connection,
            url=target.url if target else (None if instance is None else instance.url),
            model=model,
            build=None if props is None else props.build,
            cpu_percent=use.cpu_percent,
            rss_bytes=use.rss_bytes,
            disk_read_bytes_per_s=use.disk_read_bytes_per_s,
            disk_write_bytes_per_s=use.disk_write_bytes_per_s,
            kv_total_bytes=limits.kv_bytes,
            kv_ram_limit_bytes=limits.cache_ram_bytes,
        )
        if view.connection in (Connection.REFUSED, Connection.LOADING, Connection.FOREIGN):
            return engine  # there is no engine whose last figures could still mean something
        return self._with_counters(engine, view, limits)

    def _with_counters(self, engine: Engine, view: View, limits: Limits) -> Engine:
        figures = self._speeds.update(view, self._facts)
        experts = self._experts.update(view, figures)
        values: Mapping[str, float] = view.metrics.value or {}
        used, total = _kv_tokens(figures.slots, limits.ctx_tokens)
        kv_used = None
        if limits.kv_bytes is not None and used is not None and total:
            kv_used = round(limits.kv_bytes * min(1.0, used / total))
        drafted = values.get("llamacpp:spec_decode_num_draft_tokens_total")
        accepted = values.get("llamacpp:spec_decode_num_accepted_tokens_total")
        rejected = None if drafted is None or accepted is None else drafted - accepted
        return replace(
            engine,
            slots=figures.slots,
            prompt_tps=_rounded(figures.prompt_tps),
            gen_tps=_rounded(figures.gen_tps),
            requests_processing=_int(values, "llamacpp:requests_processing"),
            requests_deferred=_int(values, "llamacpp:requests_deferred"),
            prompt_tokens_total=_int(values, "llamacpp:prompt_tokens_total"),
            cached_tokens_total=_int(values, "llamacpp:prompt_tokens_cached_total"),
            generated_tokens_total=_int(values, "llamacpp:tokens_predicted_total"),
            cache_hit_ratio=ratio(
                values.get("llamacpp:prompt_tokens_cached_total"),
                values.get("llamacpp:prompt_tokens_total"),
            ),
            draft_acceptance=ratio(accepted, rejected),
            kv_used_tokens=used,
            kv_total_tokens=total,
            kv_used_bytes=kv_used,
            kv_disk_bytes=_int(values, "llama_ai:kv_disk_bytes"),
            kv_disk_limit_bytes=_int(values, "llama_ai:kv_disk_cap_bytes"),
            kv_hits_hot=_int(values, "llama_ai:kv_hits_hot_total"),
            kv_hits_warm=_int(values, "llama_ai:kv_hits_warm_total"),
            kv_hits_cold=_int(values, "llama_ai:kv_hits_cold_total"),
            kv_misses=_int(values, "llama_ai:kv_misses_total"),
            kv_restored_tokens=_int(values, "llama_ai:kv_restored_tokens_total"),
            expert_hit_ratio=experts.hit_ratio,
            expert_read_bytes_per_token=experts.read_bytes_per_token,
            expert_stall_share=experts.stall_share,
            expert_resident_bytes=experts.resident_bytes,
            expert_budget_bytes=experts.budget_bytes,
        )

    def _late(self, view: View) -> tuple[Late, ...]:
        if view.connection in (Connection.REFUSED, Connection.UNKNOWN, Connection.SLEEPING):
            return ()
        now_s = time.monotonic()
        found = []
        for name, part in (("metrics", view.metrics), ("slots", view.slots)):
            if part.at_s is None or part.off:
                continue
            age_s = now_s - part.at_s
            if age_s > 2 * self._interval_s + 1:
                busy = "/health answers, so probably a long batch"
                why = busy if view.connection is Connection.OK else part.problem or "no answer"
                found.append(Late(what=name, age_s=round(age_s, 1), why=why))
        return tuple(found)


def _missing(view: View, gpu: Gpu | None) -> list[Missing]:
    found = []
    if gpu is None:
        found.append(Missing(what="gpu", why="no GPU whose driver tells its use (amdgpu) is here"))
    elif gpu.vram_total_bytes is None and gpu.gtt_total_bytes is None:
        found.append(Missing(what="gpu memory", why=f"{gpu.card} does not tell it"))
    if view.connection not in (Connection.OK, Connection.UNAUTHORISED, Connection.SLEEPING):
        return found
    parts: tuple[tuple[str, Reading], ...] = (("metrics", view.metrics), ("slots", view.slots))
    found += [
        Missing(what=name, why=part.problem)
        for name, part in parts
        if part.problem is not None and (part.off or part.at_s is None)
    ]
    told = view.kv.value
    if view.kv.off:
        found.append(Missing(what="kv disk tier", why="this engine has none"))
    elif told is not None and told.get("enabled") is False:
        why = told.get("reason")
        found.append(
            Missing(what="kv disk tier", why="off" + (f": {clean(str(why), 100)}" if why else ""))
        )
    return found


def _kv_tokens(slots: tuple[Any, ...], planned: int | None) -> tuple[int | None, int | None]:
    """Tokens in the KV cache and room for them, over all slots.

    Slots that share one unified cache each state its whole size; the plan tells that apart.
    """
    sizes = [slot.ctx_tokens for slot in slots if slot.ctx_tokens is not None]
    used = [slot.ctx_used_tokens for slot in slots if slot.ctx_used_tokens is not None]
    if not sizes:
        return None, planned
    total = sum(sizes) if planned is None else min(sum(sizes), planned)
    return sum(used), total


def _int(values: Mapping[str, float], name: str) -> int | None:
    value = values.get(name)
    return None if value is None else round(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
