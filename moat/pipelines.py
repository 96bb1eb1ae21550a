"""The two pipelines of a project: whose settings a folder's params.yaml holds."""

from __future__ import annotations

from pathlib import Path

from moat.launch import find_root, project_of
from moat.params import Params, ParamsError, Pipeline

AGENT_R = "agent_r"  # the folder of the second one; the first one's is the project's own


def settings_of(root: Path) -> type[Pipeline]:
    """What the params.yaml of a pipeline's folder is checked against."""
    if root == project_of(root):
        return Params
    from moat.agent_r.params import AgentParams

    return AgentParams


def folder(start: Path, pipeline: str = "") -> Path:
    """A pipeline's folder: the one around `start`, or the named one of its project.

    Raises FileNotFoundError outside of a project, ParamsError for a name that is none.
    """
    found = find_root(start)
    if pipeline not in ("", "moat", AGENT_R):
        raise ParamsError(f"no pipeline {pipeline!r}: moat or {AGENT_R}")
    if not pipeline:
        return found
    return project_of(found) / AGENT_R if pipeline == AGENT_R else project_of(found)
