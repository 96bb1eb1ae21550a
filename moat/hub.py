"""Where a model that params name lies: a folder on this disk, or the hub's files at a fixed revision."""

from __future__ import annotations

from pathlib import Path

TOKENIZER = ["*.json", "*.jinja", "tokenizer*", "merges.txt", "vocab.txt"]  # of a hub repository
WEIGHTS = ["*.safetensors"]


class ModelError(ValueError):
    """A model that is not where params say; the message says what to set."""


def folder_of(name: str, revision: str, key: str, *, weights: bool = True) -> Path:
    """A model's folder: the one that `name` is, or the hub's files at `revision`; params name the model as `key`.

    Without `weights` (a server has them) the tokenizer is enough, and no more is fetched.

    Raises ModelError with the remedy.
    """
    if Path(name).is_dir():
        for needed in ("config.json", "tokenizer_config.json") if weights else ("tokenizer_config.json",):
            if not (Path(name) / needed).is_file():
                raise ModelError(f"{key} {name} is no model folder with its tokenizer: {needed} is missing there")
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        patterns = TOKENIZER + (WEIGHTS if weights else [])
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{key}: no model {name!r} at revision {revision!r}: it is no folder here, and the hub gave none ({error}). "
            f"Without a network, put the model's folder on this disk and name it as {key}"
        ) from error
