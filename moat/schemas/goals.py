"""`agent_r/data/tasks/{train,eval}.parquet`: tasks of the environments. Written by Agent-R's `prepare`."""

import pyarrow as pa

from moat.tables import Column, Table

GOALS = Table(
    name="goals",
    version=1,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "The environment's own name for the task, the same on every machine."),
        Column("environment", pa.string(), "Name of the environment in params.yaml."),
        Column("kind", pa.string(), "What results are told apart by: depth 1, the game, the experiment."),
        Column("demonstrated", pa.bool_(), "Whether the cold start is taught its gold actions."),
        Column("searched", pa.bool_(), "Whether the rounds search it."),
        Column("instruction", pa.string(), "What the actor is told before the first observation."),
        Column("first", pa.string(), "The first observation."),
        Column("gold", pa.list_(pa.string()), "Actions that solve it; empty where none are known."),
    ),
)
