"""`data/tasks/gold.parquet`: what every task's gold comes to by its own executor and grader. Written by `check_gold`."""

import pyarrow as pa

from moat.tables import Column, Table

GOLD = Table(
    name="gold",
    version=1,
    key=("split", "task_id"),
    columns=(
        Column("split", pa.string(), "train or eval."),
        Column("task_id", pa.string(), "The task."),
        Column("source", pa.string(), "Name of the task source."),
        Column("outcome", pa.string(), "reached, not_reached, the kind of failure, none (no gold there) or not_run."),
        Column("answer", pa.string(), "What the gold actions came to, or null.", nullable=True),
        Column("message", pa.string(), "Why they failed or were not run; empty when they were."),
    ),
)
