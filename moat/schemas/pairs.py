"""`data/rounds/r/pairs.parquet`: one row per task, its best plan against its worst. Written by `pairs@r`."""

import pyarrow as pa

from moat.tables import Column, Table

PAIRS = Table(
    name="pairs",
    version=1,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("n_candidates", pa.int32(), "Usable candidates that were compared."),
        Column("n_distinct", pa.int32(), "Different texts among them."),
        Column("chosen_k", pa.int32(), "The preferred candidate.", nullable=True),
        Column("rejected_k", pa.int32(), "The other one.", nullable=True),
        Column("chosen", pa.string(), "Subgoals of chosen_k.", nullable=True),
        Column("rejected", pa.string(), "Subgoals of rejected_k.", nullable=True),
        Column("chosen_nll", pa.float64(), "NLL of the gold actions given chosen.", nullable=True),
        Column("rejected_nll", pa.float64(), "NLL of the gold actions given rejected.", nullable=True),
        Column("chosen_ppl", pa.float64(), "PPL of the gold actions given chosen.", nullable=True),
        Column("rejected_ppl", pa.float64(), "PPL of the gold actions given rejected.", nullable=True),
        Column("dropped", pa.string(), "Why the task gives no pair, or null when the pair is trained on.", nullable=True),
    ),
)
