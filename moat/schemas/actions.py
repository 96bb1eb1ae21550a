"""`data/rounds/r/actions.parquet`: the grounder's actions for every plan, executed. Written by `ground@r`."""

import pyarrow as pa

from moat.tables import Column, Table

ACTIONS = Table(
    name="actions",
    version=1,
    key=("task_id", "k"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("k", pa.int32(), "The candidate whose subgoals were grounded."),
        Column("actions", pa.string(), "The grounder's answer."),
        Column("finish_reason", pa.string(), "stop or length."),
        Column("outcome", pa.string(), "reached, not_reached, or the kind of failure."),
        Column("answer", pa.string(), "What the last action came to, or null when it failed.", nullable=True),
        Column("message", pa.string(), "Why it failed, in words; empty when it did not."),
    ),
)
