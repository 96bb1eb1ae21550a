"""Model folders: complete, of one architecture, base and tokenizer, every weight a number, and a card that fits."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moat import adapters, layout
from moat.adapters import AdapterError, Kind
from moat.checkout import Absent, Checkout, Findings
from moat.layout import CARD
from moat.provenance import content_hash

INDEX = "model.safetensors.index.json"
# What a model has for itself. Everything else in the base model's folder is its tokenizer, and the same in every folder.
OWN = ("config.json", "generation_config.json", CARD)
LEFT_BY_TRAINER = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
CHUNK = 1 << 24  # values that are looked at together


class TornError(ValueError):
    """A safetensors file that is not whole."""


def complete(checkout: Checkout[Any]) -> Findings:
    """Every model has its config, all weights, a tokenizer and moat.json, and nothing that a trainer left"""
    for path in present(checkout):
        folder = checkout.root / path
        config = adapters.CONFIG if is_adapter(folder) else adapters.MODEL_CONFIG
        for name in (config, "tokenizer_config.json", CARD):
            if not (folder / name).is_file():
                if name == CARD and path == layout.BASE_MODEL:
                    continue  # a pretrained model is copied as it is
                yield checkout.fault(path, f"{name} is missing")
            elif not is_json_object(folder / name):
                yield checkout.fault(path, f"{name} is not a JSON object")
        for name in LEFT_BY_TRAINER:
            if (folder / name).exists():
                yield checkout.fault(path, f"{name} is the trainer's: it makes equal models unequal")
        missing = [name for name in weight_files(folder) if not (folder / name).is_file()]
        if missing:
            yield checkout.fault(path, f"weights are missing: {', '.join(missing)}")


def is_json_object(path: Path) -> bool:
    """Whether a file is a JSON object."""
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def is_adapter(folder: Path) -> bool:
    """Whether a folder is an adapter's, whatever of it is left."""
    return any((folder / name).exists() for name in (adapters.CONFIG, adapters.WEIGHTS))


def weight_files(folder: Path) -> list[str]:
    """The safetensors files that a model consists of: those of its index, else the one; an adapter's one."""
    if is_adapter(folder):
        return [adapters.WEIGHTS]
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values()))
    except FileNotFoundError:
        return ["model.safetensors"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [INDEX]


def bases(checkout: Checkout[Any]) -> Findings:
    """With lora.rank every model but the base is an adapter of that rank on this very base, else a whole model"""
    hashes: dict[tuple[Path, str | None], str] = {}

    def hash_of(path: Path, without: str | None = None, /) -> str:
        if (path, without) not in hashes:
            hashes[path, without] = content_hash(path, without)
        return hashes[path, without]

    for path in present(checkout):
        folder, rank = checkout.root / path, checkout.settings(path).lora.rank
        if path == layout.BASE_MODEL:
            continue
        try:
            kind = adapters.kind_of(folder)
            if (kind is Kind.ADAPTER) is not (rank > 0):
                yield checkout.fault(path, f"it is {'an' if rank == 0 else 'no'} adapter, and lora.rank is {rank}")
            elif kind is Kind.ADAPTER:
                if (own := adapters.config_of(folder)["r"]) != rank:
                    yield checkout.fault(path, f"its rank is {own}, and lora.rank is {rank}")
                adapters.base_under(folder, hash_of, checkout.folder(layout.BASE_MODEL))
        except AdapterError as error:
            yield checkout.fault(path, str(error).replace(f"{checkout.root}/", ""))
        except FileNotFoundError:  # a part is missing, of which `complete` tells
            continue


def tokenizers(checkout: Checkout[Any]) -> Findings:
    """Every model has the base model's tokenizer, byte for byte"""
    base = checkout.folder(layout.BASE_MODEL)
    shared = [path for path in sorted(base.iterdir()) if path.name not in OWN and "safetensors" not in path.name]
    for path in present(checkout):
        other = [file.name for file in shared if not same(file, checkout.root / path / file.name)]
        if other:
            yield checkout.fault(path, f"not the base model's: {', '.join(other)}")


def same(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    return other.is_file() and one.read_bytes() == other.read_bytes()


def weights(checkout: Checkout[Any]) -> Findings:
    """Every tensor is whole, finite, and of the base model's name and shape"""
    shapes: dict[Path, dict[str, list[int]]] = {}
    for path in present(checkout):
        shapes[path] = {}
        for name in weight_files(checkout.root / path):
            file = checkout.root / path / name
            if name.endswith(".json") or not file.is_file():
                continue
            try:
                for tensor, shape, values in tensors(file):
                    shapes[path][tensor] = shape
                    if not values_finite(values):
                        yield checkout.fault(
                            path, f"{name}: tensor {tensor} has values that are no numbers (NaN or infinite)"
                        )
            except TornError as error:
                yield checkout.fault(path, f"{name} is torn: {error}")
                shapes.pop(path, None)
                break
    base = shapes.pop(layout.BASE_MODEL, None)
    for path, own in shapes.items():
        if base is not None and is_adapter(checkout.root / path):
            if strange := sorted(name for name, shape in own.items() if not fits(name, shape, own, base)):
                yield checkout.fault(
                    path,
                    f"{len(strange)} tensors are no factors of {layout.BASE_MODEL}'s weights, the first {strange[0]}",
                )
        elif base is not None and own != base:
            names = sorted(name for name in {*own, *base} if own.get(name) != base.get(name))
            yield checkout.fault(
                path, f"{len(names)} tensors are not of {layout.BASE_MODEL}'s names and shapes, the first {names[0]}"
            )


FACTOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def fits(name: str, shape: list[int], own: dict[str, list[int]], base: dict[str, list[int]]) -> bool:
    """Whether a tensor is A [rank, in] or B [out, rank] of a weight W [out, in] of the base, and its partner is there."""
    named = FACTOR.fullmatch(name)
    if not named or len(whole := base.get(f"{named[1]}.weight", [])) != 2:
        return False
    partner = own.get(f"base_model.model.{named[1]}.lora_{'BA'['AB'.index(named[2])]}.weight", [])
    a, b = (shape, partner) if named[2] == "A" else (partner, shape)
    return len(a) == len(b) == 2 and a[0] == b[1] and [b[0], a[1]] == whole


def tensors(path: Path) -> Iterator[tuple[str, list[int], np.ndarray[Any, Any]]]:
    """Name, shape and values (bfloat16 as its raw 16 bits) of every tensor in a safetensors file, not loaded at once.

    Format: 8 bytes length of the header, the header (JSON: dtype, shape, data_offsets), the data. Raises TornError.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length + 8 > size:
            raise TornError("the header is cut")
        try:
            header = json.loads(file.read(length))
            entries = sorted(
                (e["data_offsets"], n, e["dtype"], e["shape"]) for n, e in header.items() if n != "__metadata__"
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TornError("the header is no list of tensors") from error
    data = 8 + length
    if data + max((offsets[1] for offsets, *_ in entries), default=0) != size:
        raise TornError(f"it has {size:,} bytes, not those that its header announces")
    for (begin, end), name, dtype, shape in entries:
        kind = np.dtype(np.uint16 if dtype == "BF16" else FLOATS.get(dtype, np.uint8))
        if dtype in FLOATS and (end - begin) != math.prod(shape) * kind.itemsize:
            raise TornError(f"tensor {name} has {end - begin} bytes for the shape {shape}")
        count = (end - begin) // kind.itemsize
        values = np.memmap(path, kind, "r", data + begin, (count,)) if count else np.empty(0, kind)
        yield name, shape, values


def values_finite(values: np.ndarray[Any, Any]) -> bool:
    """Whether no value is NaN or infinite; 16-bit integers are taken for bfloat16, whose exponent is then not all ones."""
    for begin in range(0, len(values), CHUNK):
        part = values[begin : begin + CHUNK]
        good = (part & 0x7F80) != 0x7F80 if part.dtype == np.uint16 else np.isfinite(part)
        if not good.all():
            return False
    return True


def logs(checkout: Checkout[Any]) -> Findings:
    """A training log ends at the last update, and every figure in it is a number"""
    for path in present(checkout):
        facts = checkout.facts(path)
        log = facts.get("log")
        if not isinstance(log, list) or not log:
            if "updates" in facts:
                yield checkout.fault(path, "moat.json has no training log")
            continue
        if log[-1].get("update") != facts.get("updates"):
            yield checkout.fault(
                path, f"moat.json: the log ends at update {log[-1].get('update')}, of {facts.get('updates')} updates"
            )
        bad = [entry.get("update") for entry in log if not all(finite(value) for value in entry.values())]
        if bad:
            yield checkout.fault(path, f"moat.json: a figure of update {bad[0]} is no number")


def finite(value: Any) -> bool:
    """Whether a value of a log is a number."""
    return isinstance(value, int | float) and math.isfinite(value)


def present(checkout: Checkout[Any]) -> list[Path]:
    """The model folders that are there. Raises Absent when none is."""
    found = [path for path in checkout.models if (checkout.root / path).is_dir()]
    if not found:
        raise Absent
    return found
