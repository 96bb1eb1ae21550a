"""What a model's moat.json must say of its training, by the rows that it was trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from moat.checkout import Checkout, Findings
from moat.layout import CARD
from moat.params import Sft
from moat.provenance import file_hashes


def updates(rows: int, settings: Sft) -> int:
    """Optimiser steps over `rows`: whole batches of an epoch, the last one smaller, times the epochs."""
    return math.ceil(math.ceil(rows / settings.batch_size) * settings.epochs)


def card(checkout: Checkout[Any], model: Path, stage: str, named: str, n: int, steps: int) -> Findings:
    """moat.json against what was there to train on: `n` rows or pairs (`named`), in `steps` updates."""
    facts = checkout.facts(model)
    for name, due in (("stage", stage), (named, n), ("updates", steps)):
        if facts.get(name) != due:
            yield checkout.fault(model, f"moat.json says {name}: {facts.get(name)}, the tables and parameters say {due}")


def unchanged(checkout: Checkout[Any], model: Path, key: str) -> Findings:
    """A round's model that was not trained equals the one that it starts from."""
    before = checkout.params.before()[key] if checkout.settings(model).init_from == "previous" else "0"
    yield from copied(checkout, model, model.parent / before)


def copied(checkout: Checkout[Any], model: Path, start: Path) -> Findings:
    """A model that was not trained equals `start`, byte for byte."""
    before, after = (file_hashes(checkout.folder(path)) | {CARD: ""} for path in (start, model))
    if before != after or checkout.facts(model).get("copy_of") != start.as_posix():
        yield checkout.fault(model, f"it was not trained, and yet is not {start}")
