"""`agent_r/data/rounds/r/trees.parquet`: what each task's search came to and cost. Written by `search@r`."""

import pyarrow as pa

from moat.tables import Column, Table

TREES = Table(
    name="trees",
    version=1,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("environment", pa.string(), "Name of the environment in params.yaml."),
        Column("rollouts", pa.int32(), "Finished rollouts."),
        Column("stopped", pa.string(), "iterations, exhausted (nothing is left to try), solved, or dropped."),
        Column("best", pa.float64(), "Highest final reward of a path; 0 without any."),
        Column("worst", pa.float64(), "Lowest final reward of a path; 0 without any."),
        Column("calls", pa.int32(), "Turns asked of the actor."),
        Column("tokens", pa.int64(), "Tokens generated."),
        Column("steps", pa.int32(), "Steps taken in the environment, those that bring back a state among them."),
        Column("replayed", pa.int32(), "Steps that only brought back a state."),
        Column("dropped", pa.string(), "Why the tree is not used; null when it is.", nullable=True),
        Column("message", pa.string(), "The same in words; blank when it is used."),
    ),
)
