"""Every table: its contract, its counts, what it was made from and by what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from moat.checkout import Absent, Checkout, Findings, get
from moat.params import PARAMS
from moat.provenance import content_hash

ENGINE = ("engine", "device", "dtype", "versions")


def readable(checkout: Checkout[Any]) -> Findings:
    """Every table has its schema's columns, types and version, and no key twice"""
    for path in checkout.schemas:
        try:
            checkout.table(path)
        except Absent:
            if path in checkout.unreadable:
                yield checkout.fault(path, checkout.unreadable[path])


def sorted_by_key(checkout: Checkout[Any]) -> Findings:
    """Rows stand in the order of the key"""
    for path, schema, rows in checkout.present():
        keys = rows.select(schema.key)
        if not keys.equals(keys.sort(schema.key)):
            moved = keys.filter(pl.Series([a != b for a, b in zip(keys.rows(), keys.sort(schema.key).rows(), strict=True)]))
            yield from checkout.rows(path, moved, "not in the order of the key")


def counted(checkout: Checkout[Any]) -> Findings:
    """Rows in = rows kept + rows dropped by reason, and the rows are there"""
    for path, _, rows in checkout.present():
        counts = checkout.facts(path).get("counts")
        if counts is None:
            if not checkout.uncounted(path):
                yield checkout.fault(path, "its metadata has no counts")
            continue
        try:
            rows_in, kept, dropped = int(counts["rows_in"]), int(counts["kept"]), dict(counts["dropped"])
        except (KeyError, TypeError, ValueError):
            yield checkout.fault(path, f"its counts are not rows_in, kept and dropped: {counts}")
            continue
        if rows_in != kept + sum(dropped.values()):
            yield checkout.fault(path, f"its counts do not add up: {rows_in:,} in, {kept:,} kept, dropped {dropped}")
        for name, said, there in checkout.expected_counts(path, rows, rows_in, kept, dropped):
            if said != there:
                yield checkout.fault(path, f"its counts say {name}: {said}, the tables say {there}")


def parents_there(checkout: Checkout[Any]) -> Findings:
    """What an artifact was made from is there too"""
    missing = {path for stage in checkout.stages.values() for path in data_deps(stage)}
    for path in sorted(path for path in missing if not (checkout.root / path).exists()):
        made = [out for out, stage in checkout.makers.items() if path in data_deps(checkout.stages[stage])]
        there = [out for out in made if (checkout.root / out).exists() and out.parts[0] in ("data", "models")]
        if there:
            yield checkout.warning(
                path,
                f"not there, though {there[0]}, made from it, is: the checks that need it were left out",
                f"`dvc checkout {path}` or `dvc pull {path}`",
            )


def made_from_these(checkout: Checkout[Any]) -> Findings:
    """Every artifact was made from the tables and models that are here"""
    recorded = {Path(out["path"]): out.get("md5") for stage in checkout.stages.values() for out in stage.get("outs", [])}
    for name, stage in checkout.stages.items():
        for path, md5 in data_deps(stage).items():
            if path in recorded and recorded[path] != md5:
                made = next(iter(stage.get("outs", [])), {"path": name})["path"]
                yield checkout.fault(
                    Path(made), f"made from another {path} than the one that dvc.lock records now", "`dvc repro`"
                )
    hashes: dict[str, str] = {}
    for path in [*checkout.schemas, *checkout.models]:
        try:
            inputs = checkout.facts(path).get("inputs")
        except Absent:
            continue
        for source, expected in (inputs if isinstance(inputs, dict) else {}).items():
            if (checkout.root / source).exists():
                if source not in hashes:
                    hashes[source] = content_hash(checkout.root / source)
                if hashes[source] != expected:
                    yield checkout.fault(path, f"made from another {source} than the one that is here", "`dvc repro`")


def data_deps(stage: dict[str, Any]) -> dict[Path, str]:
    """A stage's dependencies that are tables or models, with the hash that dvc.lock records."""
    found = {Path(dep["path"]): dep.get("md5", "") for dep in stage.get("deps", [])}
    return {path: md5 for path, md5 in found.items() if path.parts[0] in ("data", "models")}


def changed_params(checkout: Checkout[Any]) -> Findings:
    """Every artifact was made with the parameters of now"""
    for path in [*checkout.schemas, *checkout.models]:
        try:
            recorded = checkout.recorded_params(path) if (checkout.root / path).exists() else {}
        except Absent:
            continue
        changed = []
        for key, value in recorded.items():
            changed += differing(key, value, get(checkout.raw, key))
        if changed:
            yield checkout.warning(path, f"made with {', '.join(changed)}", "`dvc repro` makes it anew")


def differing(key: str, then: Any, now: Any) -> list[str]:
    """The leaf keys whose value is another now, in words; an artifact tells only of those that it depends on."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [text for name in then for text in differing(f"{key}.{name}", then.get(name), now.get(name))]
    return [] if then == now else [f"{key} {then} ({PARAMS} now says {now})"]


def one_engine(checkout: Checkout[Any]) -> Findings:
    """All tables of a kind, and all models, were made by one engine; whatever an engine made, with one dtype and versions"""
    kinds: dict[str, dict[Path, dict[str, Any]]] = {}
    for path in [*checkout.schemas, *checkout.models]:
        try:
            facts = checkout.facts(path)
        except Absent:
            continue
        if "engine" in facts:
            own = {name: facts.get(name) for name in ENGINE}
            kind = checkout.schemas[path].name if path in checkout.schemas else "model"
            kinds.setdefault(f"of kind {kind}", {})[path] = {"engine": own["engine"]}
            kinds.setdefault(f"of engine {own['engine']}", {})[path] = own
    for made in kinds.values():
        yield from _others(checkout, made)


def _others(checkout: Checkout[Any], made: dict[Path, dict[str, Any]]) -> Findings:
    """Artifacts that are alike, but not made like most of them."""
    alike: dict[str, list[Path]] = {}
    for path, own in made.items():
        alike.setdefault(json.dumps(own, sort_keys=True), []).append(path)
    most = max(alike, key=lambda said: len(alike[said]))
    for said, paths in alike.items():
        if said != most:
            other, usual = json.loads(said), json.loads(most)
            words = [f"{name} {other[name]} (the others: {usual[name]})" for name in other if other[name] != usual[name]]
            more = f"; so were {len(paths) - 1} more" if len(paths) > 1 else ""
            yield checkout.warning(
                paths[0],
                f"made with {', '.join(words)}{more}",
                "figures of different engines are not comparable to the last digit: `dvc repro --force` on one machine",
            )


def known_rounds(checkout: Checkout[Any]) -> Findings:
    """No file is left of a round that params.yaml does not have"""
    rounds, of_models = {"0", *checkout.rounds}, [f"models/{role}/*" for role in checkout.roles]
    for pattern in ("data/rounds/*", "data/evals/*.parquet", "data/recoveries/*.parquet", *of_models):
        for path in sorted(checkout.root.glob(pattern)):
            if path.stem.isdigit() and path.stem not in rounds:
                yield checkout.warning(
                    path.relative_to(checkout.root),
                    f"params.yaml has no round {path.stem}: nothing reads this, and nothing checks it",
                    f"delete it, or add the round to {PARAMS}",
                )
