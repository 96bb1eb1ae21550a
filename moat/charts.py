"""Curves over rounds and updates as inline SVG: small, without scripts or fonts of their own; equal data, equal bytes.

Colours are names that the page defines (`--c1` to `--c5`, and the text's own colour): one drawing for light and dark.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

FOREGROUND = "#010203"  # stands for the text's colour while matplotlib draws
SERIES = ("#0000c1", "#0000c2", "#0000c3", "#0000c4", "#0000c5")  # stand for --c1 … --c5
SIZE = (4.8, 2.9)  # inches; the page scales it
RC: dict[Any, Any] = {
    "axes.edgecolor": FOREGROUND,
    "axes.labelcolor": FOREGROUND,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.18,
    "grid.color": FOREGROUND,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "moat",
    "text.color": FOREGROUND,
    "text.parse_math": False,  # a source's name may hold dollar signs
    "xtick.color": FOREGROUND,
    "ytick.color": FOREGROUND,
}

Values = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One curve: a value per round (None: not measured), and, where there is one, the interval about it.

    `colour` is a number of the page's colours, from 0; None: that of the curve's place.
    """

    label: str
    values: Values
    low: Values | None = None
    high: Values | None = None
    dashed: bool = False
    colour: int | None = None


def _numbers(values: Values) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _axes(ticks: Sequence[str], axis: str, top_share: bool) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlim(-0.4, len(ticks) - 0.6)
    axes.set_ylabel(axis)
    axes.grid(axis="y")
    axes.tick_params(length=0)
    if top_share:
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    return figure, axes


def _legend(axes: Axes, labels: Sequence[str]) -> None:
    if len(labels) > 1:
        # matplotlib lists curves with intervals last; the legend keeps our order
        handle_of = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        handles = [handle_of[label] for label in labels]
        axes.legend(
            handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(len(labels), 2), handlelength=1.6
        )


def lines(
    name: str,
    ticks: Sequence[str],
    curves: Sequence[Line],
    axis: str,
    share: bool,
    mark: float | None,
    floor: float | None = None,
) -> str:
    """Curves over `ticks` as an SVG element; `name` makes its ids unique in the page, `mark` is a level to compare.

    `floor` is where the axis begins; None: a little below the curves.
    """
    with style.context("default"), mpl.rc_context(RC):
        figure, axes = _axes(ticks, axis, share)
        for index, curve in enumerate(curves):
            colour = SERIES[(index if curve.colour is None else curve.colour) % len(SERIES)]
            x, y = range(len(ticks)), _numbers(curve.values)
            if curve.low is not None and curve.high is not None:
                low, high = _numbers(curve.low), _numbers(curve.high)
                spread = [
                    [max(0.0, b - a) for a, b in zip(low, y, strict=True)],
                    [max(0.0, b - a) for a, b in zip(y, high, strict=True)],
                ]
                axes.errorbar(x, y, yerr=spread, color=colour, marker="o", capsize=4, label=curve.label)
            else:
                axes.plot(x, y, "--" if curve.dashed else "-", color=colour, marker="o", label=curve.label)
        if mark is not None:
            axes.axhline(mark, color=FOREGROUND, linewidth=0.8, linestyle=":")
            low_end, high_end = axes.get_ylim()
            axes.set_ylim(min(low_end, mark - 0.1), max(high_end, mark + 0.1))  # noise about it must not look large
        if floor is not None:
            axes.set_ylim(bottom=floor)
        _legend(axes, [curve.label for curve in curves])
        return _svg(figure, name)


@dataclass(frozen=True)
class Track:
    """A curve over numbers: y at x."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def tracks(name: str, curves: Sequence[Track], bounds: Sequence[float]) -> str:
    """Curves over updates as an SVG element; a dotted line stands at each of `bounds`, where a round ends."""
    with style.context("default"), mpl.rc_context(RC):
        figure, axes = _axes([], "", False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        for index, curve in enumerate(curves):
            axes.plot(curve.x, curve.y, color=SERIES[index % len(SERIES)], label=curve.label, linewidth=1.2)
        for bound in bounds:
            axes.axvline(bound, color=FOREGROUND, linewidth=0.8, linestyle=":")
        axes.set_xlabel("update")
        _legend(axes, [curve.label for curve in curves])
        return _svg(figure, name)


def shares(name: str, ticks: Sequence[str], parts: Sequence[Line], axis: str) -> str:
    """Stacked bars of shares over `ticks` as an SVG element."""
    with style.context("default"), mpl.rc_context(RC):
        figure, axes = _axes(ticks, axis, True)
        base = [0.0] * len(ticks)
        for index, part in enumerate(parts):
            heights = [value or 0.0 for value in part.values]
            axes.bar(range(len(ticks)), heights, 0.5, bottom=base, color=SERIES[index % len(SERIES)], label=part.label)
            base = [a + b for a, b in zip(base, heights, strict=True)]
        axes.set_axisbelow(True)
        _legend(axes, [part.label for part in parts])
        return _svg(figure, name)


def _svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page: without prologue, namespaces and metadata, in the page's colours."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    if box is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox; its version is not one that this code knows")
    rest = rest.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', rest))
    rest = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", rest)
    rest = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", rest)
    for number, colour in enumerate(SERIES, 1):
        rest = rest.replace(colour, f"var(--c{number})")
    return f"<svg {box[0]}>" + rest.replace(FOREGROUND, "currentColor")
