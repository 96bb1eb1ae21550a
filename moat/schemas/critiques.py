"""`data/rounds/r/critiques.parquet`: the critic's verdict on every acted candidate. Written by `critique@r`."""

import pyarrow as pa

from moat.tables import Column, Table

CRITIQUES = Table(
    name="critiques",
    version=1,
    key=("task_id", "k"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("k", pa.int32(), "The candidate."),
        Column("verdict", pa.string(), "accept, correct, reject or unparsed."),
        Column("corrected_actions", pa.string(), "Actions in place of the grounder's, for correct only.", nullable=True),
        Column(
            "corrected_subgoals",
            pa.string(),
            "A judge's own subgoals beside its actions; trained on only under critic.subgoals: corrected.",
            nullable=True,
        ),
        Column("reason", pa.string(), "What decided the verdict."),
    ),
)
