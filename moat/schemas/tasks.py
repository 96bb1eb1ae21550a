"""`data/tasks/{train,eval}.parquet`: what is asked, with its gold answer. Written by `prepare`."""

import pyarrow as pa

from moat.tables import Column, Table

TASKS = Table(
    name="tasks",
    version=1,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "Content-derived id: the same task is the same id on every machine."),
        Column("source", pa.string(), "Name of the task source in params.yaml."),
        Column("trained", pa.bool_(), "Whether the source is trained on (held-in) or never (held-out)."),
        Column("domain", pa.string(), "Which tools the task's actions may use, such as maths."),
        Column("text", pa.string(), "The question, as both roles read it."),
        Column("gold_actions", pa.string(), "Actions that reach the gold answer."),
        Column("gold_answer", pa.string(), "What the actions must come to."),
    ),
)
