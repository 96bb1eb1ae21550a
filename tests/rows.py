"""Rows of the tables with every column, for tests that care about a few of them."""

from typing import Any

# the stages of each round
OF_A_ROUND = (
    "sample",
    "score",
    "ground",
    "pairs",
    "align_planner",
    "critique",
    "mix",
    "train_grounder",
    "dynamics",
    "evaluate",
)

Row = dict[str, Any]


def task(task_id: str, **own: Any) -> Row:
    """A row of a tasks table: a whole sum of the trained source."""
    return {
        "task_id": task_id,
        "episode_id": own.get("episode_id", task_id),
        "source": "stories",
        "trained": True,
        "domain": "arithmetic",
        "metric": "number",
        "text": "How many?",
        "turn": None,
        "turns": [],
        "gold_subgoals": "Subgoal 1: Add",
        "gold_actions": "R1 = Calculator(1)",
        "gold_answer": "1",
        "context": "",
    } | own


def demo(demo_id: str, **own: Any) -> Row:
    """A row of a demonstrations table."""
    return {
        "demo_id": demo_id,
        "task_id": "t",
        "source": "stories",
        "domain": "arithmetic",
        "style": None,
        "text": "How many?",
        "turn": None,
        "turns": [],
        "subgoals": "Subgoal 1: Add",
        "actions": "R1 = Calculator(1)",
    } | own
