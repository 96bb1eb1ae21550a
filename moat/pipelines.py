"""The two pipelines of a project: whose settings a folder's params.yaml holds."""

from __future__ import annotations

from pathlib import Path

from moat import launch
from moat.launch import find_root, project_of
from moat.params import Params, ParamsError, Pipeline

MOAT, AGENT_R = "moat", launch.AGENT_R


def is_agent_r(root: Path) -> bool:
    """Whether a pipeline's folder is that of the second one, Agent-R."""
    return project_of(root) != root


def settings_of(root: Path) -> type[Pipeline]:
    """What the params.yaml of a pipeline's folder is checked against."""
    if not is_agent_r(root):
        return Params
    from moat.agent_r.params import AgentParams

    return AgentParams


def folder(start: Path, pipeline: str = "") -> Path:
    """A pipeline's folder: the one around `start`, or the named one of its project.

    Raises FileNotFoundError outside of a project, ParamsError for a name that is none.
    """
    found = find_root(start)
    if pipeline not in ("", MOAT, AGENT_R):
        raise ParamsError(f"no pipeline {pipeline!r}: {MOAT} or {AGENT_R}")
    if not pipeline:
        return found
    return project_of(found) / AGENT_R if pipeline == AGENT_R else project_of(found)
