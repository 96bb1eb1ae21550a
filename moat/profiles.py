"""Profiles: sets of values for params.yaml, as overlays that keep its comments.

A profile sets the same leaf keys as params.yaml and no other, so that switching from one to another and back restores
every value. Some keys are replaced as a whole, with the keys below them: `rounds`, `prepare.sources`, `environments`,
`base_model`.
`evaluated` follows from `rounds`. A leaf that keeps its value keeps its bytes. A comment stays with its key; one that
the profile itself carries at that key takes its place.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark
from ruamel.yaml.tokens import CommentToken

from moat.params import ParamsError, check, parse, read_text, yaml
from moat.pipelines import settings_of
from moat.publish import publish_text

FOLDER = Path("profiles")
WHOLE = frozenset({("rounds",), ("evaluated",), ("prepare", "sources"), ("environments",), ("base_model",)})
FOLLOWS = ("evaluated",)  # not written: it merges `rounds` and adds round 0

Key = tuple[str, ...]


def names(root: Path) -> list[str]:
    """The profiles of the project, sorted."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))


def path_of(root: Path, name: str) -> Path:
    """A profile's file. Raises FileNotFoundError that lists the profiles there are."""
    found = names(root)
    if name not in found:
        raise FileNotFoundError(f"no profile {name!r} in {FOLDER}/; there are {', '.join(found) or 'none'}")
    return root / FOLDER / f"{name}.yaml"


def headline(path: Path) -> str:
    """The first line of a profile's comment, without its name."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").removeprefix(f"{path.stem}:").strip() if first.startswith("#") else ""


def plain(path: Path) -> Any:
    """A YAML file's values, merges resolved. Raises ParamsError."""
    return parse(read_text(path), path)


def _leaves(node: Any, above: Key = ()) -> Iterator[Key]:
    if isinstance(node, Mapping) and above not in WHOLE and node:
        for key, value in node.items():
            yield from _leaves(value, (*above, str(key)))
    else:
        yield above


def _check_keys(profile: Any, target: Any, path: Path, target_path: Path) -> None:
    if not isinstance(profile, Mapping):
        raise ParamsError(f"{path} holds no keys: write it as profiles/tiny.yaml is")
    has, wants = set(_leaves(profile)), set(_leaves(target))
    faults = [f"  {'.'.join(key)}: unknown key, {target_path.name} has none of that name" for key in sorted(has - wants)]
    faults += [f"  {'.'.join(key)}: missing key" for key in sorted(wants - has)]
    if faults:
        raise ParamsError(f"{path} must set the keys of {target_path.name}, no more and no fewer:\n" + "\n".join(faults))


def _is_block(node: Any) -> bool:
    return isinstance(node, CommentedMap) and not node.fa.flow_style()


def _last(node: CommentedMap) -> tuple[CommentedMap, Any] | None:
    """The block map and the key that hold a block's last line; what follows it in the file is that key's comment."""
    own = [key for key in node if not node.merge or key in _own(node)]
    if not own:
        return None
    value = node[own[-1]]
    return (_last(value) if _is_block(value) else None) or (node, own[-1])


def _own(node: CommentedMap) -> set[Any]:
    """Keys that a map has itself, not by a merge."""
    return {key for key, _ in node.non_merged_items()}


def _comment(node: CommentedMap, key: Any) -> tuple[str, str]:
    """The comment at the end of a key's line, and what stands below it up to the next key."""
    slots = node.ca.items.get(key)
    token = slots[2] if slots else None
    if token is None:
        return "", ""
    said, _, below = token.value.partition("\n")
    return said, below


def _set_comment(node: CommentedMap, key: Any, said: str, below: str, column: int | None = None) -> None:
    slots = node.ca.items.setdefault(key, [None, None, None, None])
    if not said and not below:
        slots[2] = None
        return
    if column is None:
        column = slots[2].start_mark.column if slots[2] else 0
    slots[2] = CommentToken(f"{said}\n{below}", CommentMark(column), None)


def _overlay(old: CommentedMap, new: CommentedMap, above: Key = ()) -> None:
    """Give `old` the values of `new`, in place; below a whole key, its keys as well."""
    whole = any(above[: len(key)] == key for key in WHOLE)
    last = _last(old)
    below = _comment(*last)[1] if last and whole else ""
    if last and whole:
        _set_comment(*last, _comment(*last)[0], "")
    old._ref.clear()  # ruamel.yaml 0.19 fails to delete a key of a map that another one merges (`<<: *rounds`)
    for key in [key for key in _own(old) if key not in new]:
        del old[key]
        old.ca.items.pop(key, None)
    for position, (key, value) in enumerate(new.items()):
        here = (*above, str(key))
        if here == FOLLOWS:
            continue
        if key not in old:
            old.insert(position, key, value)
        elif _is_block(old[key]) and _is_block(value):
            _overlay(old[key], value, here)
            continue
        elif old[key] != value or isinstance(old[key], bool) is not isinstance(value, bool):
            old[key] = value
        said = _comment(new, key)[0]
        if said:
            column = new.ca.items[key][2].start_mark.column
            _set_comment(old, key, said, _comment(old, key)[1], column)
    last = _last(old)
    if last and whole and below:
        _set_comment(*last, _comment(*last)[0], below)


ABSENT = "–"  # stands for the value of a key that one side lacks


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted leaf keys whose values differ, with both values, in the first one's order; ABSENT for a key that is lacking.

    Lists and maps below a source's or a model's settings are compared leaf by leaf too; 1 and true are different.
    """
    left, right = dict(_values(one)), dict(_values(other))
    keys = [*left, *(key for key in right if key not in left)]
    found = {}
    for key in keys:
        pair = left.get(key, ABSENT), right.get(key, ABSENT)
        if key[:1] != FOLLOWS and (pair[0] != pair[1] or isinstance(pair[0], bool) is not isinstance(pair[1], bool)):
            found[".".join(key)] = pair
    return found


def _values(node: Any, above: Key = ()) -> Iterator[tuple[Key, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _values(value, (*above, str(key)))
    else:
        yield above, node


def use(root: Path, name: str, params: Path) -> bool:
    """Write a profile's values into `params`; False when it had them already.

    Raises FileNotFoundError for an unknown profile, ParamsError naming every key that is unknown, missing or out of
    range; `params` is then as it was.
    """
    path = path_of(root, name)
    text = read_text(params)
    wanted, found = plain(path), parse(text, params)
    if not isinstance(found, Mapping):
        raise ParamsError(f"{params} holds no settings: `git checkout -- {params.name}` brings them back")
    _check_keys(wanted, found, path, params)
    check(wanted, settings_of(root), path)
    if wanted == found:
        return False
    dialect = yaml()
    target, profile = dialect.load(text), dialect.load(path.read_text(encoding="utf-8"))
    _overlay(target, profile)
    out = io.StringIO()
    dialect.dump(target, out)
    written = parse(out.getvalue(), params)
    if written != wanted:
        wrong = sorted(key for key in wanted if written.get(key) != wanted[key])
        raise ParamsError(
            f"{params} cannot take {path}: {', '.join(wrong)} would differ; write `evaluated` as "
            '`<<: *rounds` and `"0": {prev: ""}` in both'
        )
    check(written, settings_of(root), params)
    publish_text(params, out.getvalue())
    return True
