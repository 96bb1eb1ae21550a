"""What the pages of both pipelines share: the settings in words, figures as text, and the templates' environment.

Whatever a model or a task source wrote is text in a page, never markup; equal inputs give equal bytes. The templates share
the macros of reporting.html.j2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from moat.params import EmbeddedModel, LocalModel, PackagedModel

Block = Mapping[str, Any]
TEMPLATES = Path(__file__).parent


class ReportError(ValueError):
    """Inputs that do not belong together; the message names the file and what to do."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A setting that leaves the paper on purpose, as params.yaml says it."""

    key: str
    value: str
    comment: str


def deviations(text: str) -> list[Deviation]:
    """Settings of params.yaml whose comment starts with "deviates", in the file's order.

    A line reader for block mappings: the path of a key is told by indentation. A value that holds ` #` is not covered.
    """
    found: list[Deviation] = []
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.match(r"( *)([^\s#][^:]*):(?:\s+(.*))?$", line)
        if match is None:
            continue
        indent = len(match[1])
        above = [entry for entry in above if entry[0] < indent]
        above.append((indent, match[2].strip("\"'")))
        value, _, comment = (match[3] or "").partition("#")
        said = re.match(r"deviates\b[.:]?\s*(.*)", comment.strip())
        if said:
            found.append(Deviation(".".join(name for _, name in above), value.strip(), said[1]))
    return found


def base_model(settings: EmbeddedModel | LocalModel | PackagedModel) -> str:
    """Which model a run starts from, in words."""
    match settings:
        case EmbeddedModel():
            return "embedded (made here)"
        case LocalModel():
            return f"{settings.name} at {settings.revision}"
        case PackagedModel():
            return f"{settings.file} of the package {settings.package}"


def read_metrics(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """metrics.json, with the blocks of `keys` alone in `rounds`, in that order. Raises FileNotFoundError or ReportError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run the stage summarize (`dvc repro summarize`)")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        rounds = told["rounds"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ReportError(f"{path} is not what summarize writes ({error!r}): `dvc repro -f summarize`") from error
    missing = [key for key in keys if key not in rounds]
    if missing:
        raise ReportError(
            f"{path} lacks the rounds {', '.join(missing)} of params.yaml: run summarize (`dvc repro summarize`)"
        )
    return {**told, "rounds": {key: rounds[key] for key in keys}}


def tick(key: str, first: str = "cold start") -> str:
    """A round's name on an axis; `first` is that of round 0."""
    return first if key == "0" else f"round {key}"


def percent(value: float | None, unit: str = "%") -> str:
    """A share in percent with one decimal; a dash when it was not measured."""
    return "–" if value is None else f"{100 * value:.1f}{unit}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals, in short form when it is huge; a dash when it was not measured."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}" if abs(value) < 1e5 else f"{value:.2e}"


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}".replace("-", "−")


def drawn(charts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Charts (title, note, svg) for a page: the drawings are markup, made here."""
    return [{**chart, "svg": Markup(chart["svg"])} for chart in charts]


def rendered(template: str, **context: Any) -> str:
    """A template of the library, by its path in it, filled in."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "number": number, "points": points}
    return environment.get_template(template).render(**context)
