"""`data/rounds/r/sft.parquet` and `pool.parquet`: what the grounder is tuned on. Written by `mix@r`."""

import pyarrow as pa

from moat.schemas.tasks import TURNS
from moat.tables import Column, Table

SFT = Table(
    name="sft",
    version=2,
    key=("row_id",),
    columns=(
        Column("row_id", pa.string(), "origin, round and key of the row's parent, joined."),
        Column("origin", pa.string(), "initial (a demonstration), accepted (the grounder's) or corrected (the critic's)."),
        Column("round", pa.int32(), "The round whose candidate it is; 0 for a demonstration."),
        Column("task_id", pa.string(), "The task."),
        Column("k", pa.int32(), "The candidate; null for a demonstration.", nullable=True),
        Column("demo_id", pa.string(), "The demonstration; null for a candidate.", nullable=True),
        Column("source", pa.string(), "Name of the task source."),
        Column("domain", pa.string(), "Which tools the actions may use."),
        Column("text", pa.string(), "The question."),
        Column("turn", pa.int32(), "The turn that is grounded, from 0; null: the whole plan at once.", nullable=True),
        Column("turns", TURNS, "The turns before it."),
        Column("subgoals", pa.string(), "The plan that the grounder is given."),
        Column("actions", pa.string(), "The actions that it is to answer."),
    ),
)
