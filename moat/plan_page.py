"""A plan on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from moat.memory import USABLE
from moat.planning import Plan, gib, number, time
from moat.terminal import escape

WIDTH = 132  # columns that the tables need; a narrower terminal breaks their lines
VERDICTS = {True: "[green]fits[/]", False: "[bold red]does not fit[/]", None: "[yellow]unknown[/]"}


def show(made: Plan, out: Console) -> None:
    """Print it: the run in a line, the stages, memory, sizes, and where the figures come from."""
    out.width = max(out.width, WIDTH)
    load, at, arch = made.load, made.at, made.arch
    k, rounds = load.params.sample.k, len(load.params.rounds)
    out.print(
        f"[bold]{escape(made.profile)}[/]  {escape(made.model)}, {arch.parameters:,} parameters, {at.dtype} on {at.kind}"
    )
    units = "turns" if load.iterative else "tasks"
    out.print(
        f"{load.candidates // k:,} {units} × {k} = [bold]{load.candidates:,} candidates a round[/], "
        f"{load.candidates * rounds:,} in {rounds} round(s)"
    )
    if load.rows * k != load.candidates:
        out.print(
            f"  some tasks are rows step by step: {load.rows:,} rows, {load.rows * k:,} requests (steps of a task assumed)"
        )
    out.print(_stages(made))
    here = [cost for cost in made.costs if not cost.server]
    hours = sum(cost.seconds for cost in here)
    device_hours = sum(cost.seconds * max(1, cost.devices) for cost in here)
    asked = [cost for cost in made.costs if cost.server]
    out.print(f"[bold]{time(hours)}[/] here, {device_hours / 3600:,.1f} device hours", soft_wrap=True)
    if asked:
        tokens = sum(cost.work.tokens for cost in asked)
        spent = sum(cost.seconds * cost.devices for cost in asked) / 3600
        out.print(
            f"on servers: {sum(cost.work.requests for cost in asked):,} requests of {number(tokens)} tokens, "
            f"{spent:,.1f} device hours on devices like these; not in the sum",
            soft_wrap=True,
        )
    out.print(_memory(made))
    out.print(_sizes(made))
    host = max((use.memory.host for use in made.uses), default=0)
    if host:
        out.print(f"offload: {gib(host)} of the computer's own memory; the way there and back is not in the time")
    out.print(f"the process that holds a stage's rows: {gib(made.driver)} at most", soft_wrap=True)
    for text in made.warnings:
        out.print(f"[bold yellow]warning[/] {escape(text)}", soft_wrap=True)
    _sources(made, out)


def _stages(made: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stage", "model", "rows", "requests", "read", "written", "trained", "updates", "time", ""):
        table.add_column(name, justify="left" if name in ("stage", "model", "") else "right", no_wrap=name != "")
    last = ""
    for cost in made.costs:
        work = cost.work
        table.add_row(
            "" if work.label == last else work.label,
            work.role,
            ("≤ " if work.at_most else "") + number(work.rows),
            number(work.requests),
            number(work.prompt + work.scored),
            number(work.generated),
            number(work.trained),
            number(work.updates),
            "server" if cost.server else time(cost.seconds),
            cost.basis,
        )
        last = work.label
    return table


def _memory(made: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("memory of a device", "all", "", "of that", "at"):
        table.add_column(name, justify="right" if name == "all" else "left", no_wrap=name != "of that")
    for use in made.uses:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in use.memory.parts.items() if size > 0)
        table.add_row(use.what, gib(use.memory.total), VERDICTS[use.fits], parts, use.note)
    return table


def _sizes(made: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("on disk, a round", "rows", "size", ""):
        table.add_column(name, justify="right" if name in ("rows", "size") else "left")
    for one in made.tables:
        table.add_row(one.name, f"{one.rows:,}", gib(one.bytes), one.basis)
    return table


def _sources(made: Plan, out: Console) -> None:
    at, speed = made.at, made.at.speed
    size = "of unknown memory: set `device_memory` in machine.yaml" if at.bytes is None else f"of {gib(at.bytes)}"
    for text in (
        f"device: {at.kind} {size}; a plan may use {USABLE:.0%} of it",
        f"speed assumed: {speed.said}: {speed.operations / 1e12:,.2f} TFLOP/s and {speed.bytes / 1e9:,.0f} GB/s, of which "
        f"{speed.share:.0%} is reached (--peak, --bandwidth, --reached)",
        "rows, updates, memory: computed (docs/scale.md), from lengths of texts that are assumed (moat/workload.py)",
        "measured: by earlier runs of the same base model and sources on the same machine setting",
    ):
        out.print(f"[dim]{escape(text)}[/]", soft_wrap=True)
