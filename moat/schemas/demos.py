"""`data/demos/{planner,grounder}.parquet`: the cold start's demonstrations. Written by `prepare`."""

import pyarrow as pa

from moat.schemas.tasks import TURNS
from moat.tables import Column, Table

DEMOS = Table(
    name="demos",
    version=2,
    key=("demo_id",),
    columns=(
        Column("demo_id", pa.string(), "Content-derived id of the demonstration."),
        Column("task_id", pa.string(), "The task that is demonstrated; of data/tasks/train when that holds it."),
        Column("source", pa.string(), "Name of the task source in params.yaml."),
        Column("domain", pa.string(), "Which tools the actions may use."),
        Column("style", pa.string(), "The annotator's style of the subgoals.", nullable=True),
        Column("text", pa.string(), "The question."),
        Column("turn", pa.int32(), "The turn that is demonstrated, from 0; null: the whole plan at once.", nullable=True),
        Column("turns", TURNS, "The turns before it."),
        Column("subgoals", pa.string(), "The plan: the planner's answer, the grounder's input."),
        Column("actions", pa.string(), "The gold actions: the grounder's answer; blank for a planner's decision to stop."),
    ),
)
