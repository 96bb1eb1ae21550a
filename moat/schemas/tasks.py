"""`data/tasks/{train,eval}.parquet`: what is asked, with its gold answer. Written by `prepare`."""

import pyarrow as pa

from moat.tables import Column, Table

TURNS = pa.list_(pa.struct([("subgoal", pa.string()), ("actions", pa.string()), ("result", pa.string())]))
"""Turns of iterative planning in order: the subgoal (`Subgoal 1: …`), its actions, the result of the last of them."""

TASKS = Table(
    name="tasks",
    version=2,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "Content-derived id: the same task is the same id on every machine."),
        Column("episode_id", pa.string(), "The whole task that the row is a turn of; task_id itself for a whole task."),
        Column("source", pa.string(), "Name of the task source in params.yaml."),
        Column("trained", pa.bool_(), "Whether the source is trained on (held-in) or never (held-out)."),
        Column("domain", pa.string(), "Which tools the task's actions may use, such as maths."),
        Column("metric", pa.string(), "How an answer is graded: number, text, yes_no, exact_match, web_step or reward."),
        Column("text", pa.string(), "The question, as both roles read it."),
        Column("turn", pa.int32(), "The turn that is asked, from 0, after those before it; null: the whole.", nullable=True),
        Column("turns", TURNS, "The gold turns of the whole task; empty where planning is onetime or they are unknown."),
        Column("gold_subgoals", pa.string(), "A gold plan, or that of the turn; blank where the source has none."),
        Column("gold_actions", pa.string(), "Actions that reach the gold answer; blank where the source has none."),
        Column("gold_answer", pa.string(), "What the actions must come to."),
        Column("context", pa.string(), "What the tools read of this task, as JSON (a page, a shop's goal), or blank."),
    ),
)
