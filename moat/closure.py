"""The import closure of a stage: every module of ours that it loads, found by reading and not by running.

dvc.yaml lists these files as the stage's dependencies, so that a change of the library reruns the stages that use it and no
other; a test demands that the two are equal.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = "moat"


def _modules(source: str) -> set[str]:
    """Dotted names that `source` may import from the package, at any depth of the code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}.")}


def closure(script: Path, root: Path) -> set[Path]:
    """Files of the package that `script` imports, directly or not, relative to `root`.

    Package files (`__init__.py`) are left out: they hold a docstring and nothing else (tested).
    """
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        for name in _modules((root / waiting.pop()).read_text(encoding="utf-8")):
            path = Path(*name.split(".")).with_suffix(".py")
            if (root / path).is_file() and path not in found:
                found.add(path)
                waiting.append(path)
    return found
