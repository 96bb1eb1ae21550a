"""Where the files of an environment's package lie, found without importing it: only its data is used."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from moat.environments.base import EpisodeError, EpisodeErrorKind

INSTALL = 'pip install -c constraints.txt -e ".[agent-r]"'


def package_file(package: str, distribution: str, file: str, environment: str) -> Path:
    """The path of `file` in an installed package. Raises EpisodeError, MISSING, which says what to install."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / file
        if path.exists():
            return path
    what = f"the package {distribution} is not installed, or is of another release (no {file}); {INSTALL} installs it"
    raise EpisodeError(EpisodeErrorKind.MISSING, environment, "", what)
