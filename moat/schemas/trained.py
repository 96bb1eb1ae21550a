"""`agent_r/data/rounds/r/sft.parquet`: what the actor learns from in a round. Written by Agent-R's `mix@r`."""

import pyarrow as pa

from moat.tables import Column, Table

TRAINED = Table(
    name="trained",
    version=1,
    key=("row_id",),
    columns=(
        Column("row_id", pa.string(), "good/TASK/LEAF, revision/TASK/BAD/GOOD, general/NUMBER, or a demonstration's."),
        Column("origin", pa.string(), "good, revision, general, or gold."),
        Column("task_id", pa.string(), "The task; null for a general conversation.", nullable=True),
        Column("environment", pa.string(), "Name of the environment in params.yaml; general for a general conversation."),
        Column("reward", pa.float64(), "Final reward of the trajectory; null for a general conversation.", nullable=True),
        Column("texts", pa.list_(pa.string()), "What the two sides say in turns, the environment's side first."),
        Column("supervised", pa.list_(pa.bool_()), "Of each text, whether it is learned from."),
        Column("n_supervised", pa.int32(), "Tokens that are learned from."),
        Column("weight", pa.float64(), "What each of them counts: its origin's weight over its origin's tokens."),
    ),
)
