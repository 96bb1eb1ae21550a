"""`agent_r/data/demos/{actor,general}.parquet`: what the cold start is taught; general data. Written by `prepare`."""

import pyarrow as pa

from moat.tables import Column, Table

DIALOGUES = Table(
    name="dialogues",
    version=1,
    key=("row_id",),
    columns=(
        Column("row_id", pa.string(), "gold/TASK, {slip,judged}/TASK/NUMBER, {repeated,general}/NUMBER."),
        Column(
            "origin",
            pa.string(),
            "gold (a task's gold actions), slip (the same with a wrong action, not learned from), judged (a step with the "
            "label that is known of it), repeated (random words, said again), general.",
        ),
        Column("task_id", pa.string(), "The task; null where there is none.", nullable=True),
        Column("environment", pa.string(), "Name of the environment in params.yaml; general where there is none."),
        Column("texts", pa.list_(pa.string()), "What the two sides say in turns, the environment's side first."),
        Column("supervised", pa.list_(pa.bool_()), "Of each text, whether it is learned from."),
    ),
)
