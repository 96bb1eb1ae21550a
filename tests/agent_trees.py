"""Trees of Agent-R without a search and without an actor: what was said is a script, what was answered is real."""

import contextlib

from moat import layout
from moat.agent_r.play import Play
from moat.agent_r.turns import normal
from moat.environments.textcraft import TextCraft
from moat.react import Several
from moat.schemas.goals import GOALS
from moat.schemas.nodes import NODES
from moat.schemas.trees import TREES

DEPTH = 5  # turns of a path that does not end before


def spoken(action):
    """An action as a turn; a whole turn stays as it is."""
    return action if action.startswith("Thought:") else f"Action: {action}"


def grown(environment, task, scripts, depth=DEPTH):
    """Rows of the table of nodes: each script is played from the beginning; equal turns after equal turns are one node."""
    rows, found = {}, {(): 0}
    for script in scripts:
        with Play(environment, Several.LAST, depth) as play:
            first, path = play.begin(task), ()
            rows.setdefault(0, row(task, 0, None, 0, {"kind": "root", "observation": first}))
            for text in map(spoken, script):
                turn, parent = play.say(text), found[path]
                path += ((turn.kind, normal(turn.action)),)
                if path not in found:
                    number = found[path] = len(rows)
                    rows[number] = row(task, number, parent, len(path), turn.row() | {"end": play.over})
    return list(rows.values())


def row(task, node, parent, depth, own):
    """One node with every column."""
    return {
        "task_id": task,
        "node": node,
        "parent": parent,
        "depth": depth,
        "text": "",
        "kind": "action",
        "action": "",
        "observation": "",
        "reward_raw": 0.0,
        "reward": 0.0,
        "terminal": False,
        "end": False,
        "refused": False,
        "repeated": False,
        "simulated": False,
        "visits": 1,
        "value": 0.0,
        "n_tokens": 5,
        "logprob": -1.0,
    } | own


def tree(task, rows, dropped=None):
    """The row of a tree."""
    rewards = [one["reward"] for one in rows if one["end"]]
    return {
        "task_id": task,
        "environment": "textcraft",
        "rollouts": len(rewards),
        "stopped": "dropped" if dropped else "iterations",
        "best": max(rewards, default=0.0),
        "worst": min(rewards, default=0.0),
        "calls": len(rows),
        "tokens": 5 * len(rows),
        "steps": len(rows),
        "replayed": 0,
        "dropped": dropped,
        "message": dropped or "",
    }


def search(checkout, scripts, dropped=()):
    """Write what round 1's search leaves: of the task number n in the table the tree of `scripts(gold)[n]`.

    Returns {task: gold actions}. The trees of the tasks in `dropped` are not to be used.
    """
    with contextlib.chdir(checkout.root):
        goals = GOALS.read(layout.TRAIN_TASKS).to_dicts()
        environment = TextCraft(distractors=checkout.params.environments["textcraft"].distractors)
        made = {}
        for number, goal in enumerate(goals):
            made[goal["task_id"]] = grown(environment, goal["task_id"], scripts(goal["gold"])[number])
        NODES.write(layout.table("nodes", "1"), [one for rows in made.values() for one in rows], {})
        lost = ["fault" if number in dropped else None for number in range(len(goals))]
        trees = [tree(task, rows, why) for (task, rows), why in zip(made.items(), lost, strict=True)]
        TREES.write(layout.table("trees", "1"), trees, {})
    return {goal["task_id"]: goal["gold"] for goal in goals}
