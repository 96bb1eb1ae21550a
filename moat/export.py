"""`moat export`: a round's model as a folder that stands alone, for transformers, vLLM or a hub.

Of a whole model it is a copy. An adapter is merged into its base, in float32, as which `models/base` is stored.
"""

from __future__ import annotations

from pathlib import Path

from moat import adapters, layout, models
from moat.adapters import Kind
from moat.machine import Machine
from moat.provenance import content_hash

OURS = (Path("models"), Path("data"))


class ExportError(OSError):
    """A place where an export cannot go; says what to do."""


def export(role: str, round_key: str, out: Path) -> Kind:
    """Write a role's model after a round to the new folder `out`; paths are from the current folder. Says what it was.

    `moat.json` there names the model and its identity, so that a server of this folder passes for one of the round's model.
    Raises ExportError for a folder that is there or in one of DVC's, FileNotFoundError or AdapterError for a model that is
    not there, not on its base, or torn.
    """
    source = layout.model(role, round_key)
    kind = adapters.kind_of(source)
    if out.is_symlink() or out.exists():
        raise ExportError(f"{out} is there already: name a folder that does not exist")
    if any(folder.resolve() in out.resolve().parents for folder in OURS):
        raise ExportError(f"{out} is among DVC's outputs, which a run may delete: name a folder outside models/ and data/")
    machine = Machine(device="cpu", dtype="float32")
    models.set_up(machine)
    facts = {"exported_from": adapters.identity(source, content_hash), "model": source.as_posix()}
    if kind is Kind.WHOLE:
        models.copy(source, out, facts)
    else:
        models.save(models.load(source, machine), out, facts, tokenizer_from=source)
    return kind
