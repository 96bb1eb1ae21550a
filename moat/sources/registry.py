"""The importers by name: those of the table below, and any other module of `moat/sources/` with a function `read`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from moat.sources import chat, columns, gsm8k, hotpotqa, lumos, mind2web, strategyqa, svamp
from moat.sources.base import Imported, SourceError
from moat.sources.files import open_rows


@dataclass(frozen=True, slots=True)
class Importer:
    """A format.

    `read` takes the numbered rows of each of `files`, in order, then `settings` by name, each of the type that is given.
    `hub` names the data set of the format on the Hugging Face hub, for messages.
    """

    doc: str
    read: Callable[..., Imported]
    files: tuple[str, ...] = ("rows",)
    settings: Mapping[str, type] = field(default_factory=dict)
    hub: str = ""


def importer(name: str) -> Importer:
    """The importer `name`: of the table, or of the module `moat/sources/NAME.py`, whose settings are `read`'s parameters.

    Raises SourceError.
    """
    if name in IMPORTERS:
        return IMPORTERS[name]
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or find_spec(f"moat.sources.{name}") is None:
        raise SourceError(f"no importer {name!r}, and no file moat/sources/{name}.py; there are {', '.join(IMPORTERS)}")
    module = import_module(f"moat.sources.{name}")
    if not callable(read := getattr(module, "read", None)):
        raise SourceError(f"{module.__file__} has no function `read`: see docs/add-a-task.md")
    types = get_type_hints(read)
    settings = {setting: types[setting] for setting in list(signature(read).parameters)[1:]}
    return Importer((module.__doc__ or name).strip().splitlines()[0], read, settings=settings)


def _strategyqa(
    rows: Iterable[tuple[int, Any]], split: str = "", dev: str = "", mixed: bool = False, keep_all: bool = False
) -> Imported:
    """StrategyQA, with the publisher's dev file as a path."""
    dev_ids = strategyqa.qids(open_rows(Path(dev))) if dev else frozenset()
    return strategyqa.read(rows, split, dev_ids, mixed, keep_all)


_ALL = {"keep_all": bool}
_OWN = {"domain": str, "metric": str}
_LUMOS = {
    f"lumos_{name}_{mode}": Importer(
        f"Lumos, {name}, {mode}: a plan file and its ground file",
        partial(lumos.read, iterative=mode == "iterative"),
        ("plan", "ground"),
        hub=f"ai2lumos/lumos_{name}_plan_{mode} and ai2lumos/lumos_{name}_ground_{mode}",
    )
    for name in (*lumos.DOMAINS, "unified")
    for mode in ("onetime", "iterative")
}

IMPORTERS: Mapping[str, Importer] = MappingProxyType(
    {
        "gsm8k": Importer("GSM8K, main configuration", gsm8k.read, settings=_ALL, hub="openai/gsm8k main"),
        "gsm8k_socratic": Importer(
            "GSM8K, socratic configuration",
            partial(gsm8k.read, socratic=True),
            settings=_ALL,
            hub="openai/gsm8k socratic",
        ),
        "svamp": Importer("SVAMP, publisher's JSON or the hub's columns", svamp.read, settings=_ALL, hub="ChilleD/SVAMP"),
        "strategyqa": Importer(
            "StrategyQA, publisher's JSON; settings: split, or dev (a path), or mixed",
            _strategyqa,
            settings={"split": str, "dev": str, "mixed": bool} | _ALL,
            hub="ChilleD/StrategyQA",
        ),
        "hotpotqa": Importer(
            "HotpotQA, distractor setting or questions alone",
            hotpotqa.read,
            settings={"split": str},
            hub="hotpotqa/hotpot_qa distractor",
        ),
        "mind2web": Importer("Mind2Web, a record a step", mind2web.read, settings={"split": str}, hub="osunlp/Mind2Web"),
        **_LUMOS,
        "chat": Importer("conversations: messages of role and content", chat.read, settings=_OWN),
        "sharegpt": Importer("conversations: from and value", chat.read, settings=_OWN),
        "columns": Importer("JSON or Parquet with the documented columns", columns.read, settings=_OWN),
    }
)
"""Every importer by the name that params.yaml and `moat import` give it."""
