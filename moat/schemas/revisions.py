"""`agent_r/data/rounds/r/revisions.parquet`: every pair of a bad and a good path, spliced. Written by `revise@r`."""

import pyarrow as pa

from moat.agent_r.columns import TURNS
from moat.tables import Column, Table

REVISIONS = Table(
    name="revisions",
    version=1,
    key=("task_id", "bad", "good"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("environment", pa.string(), "Name of the environment in params.yaml."),
        Column("bad", pa.int32(), "The node at which the bad path ends."),
        Column("good", pa.int32(), "The node at which the good path ends."),
        Column("shared", pa.int32(), "Turns that both paths begin with."),
        Column("n_bad", pa.int32(), "Turns of the bad path."),
        Column("bad_reward", pa.float64(), "Final reward of the bad path."),
        Column("good_reward", pa.float64(), "Final reward of the good path."),
        Column(
            "first_bad", pa.int32(), "The first turn of the bad path that was judged bad, from 0; null: none.", nullable=True
        ),
        Column("turn", pa.int32(), "The last turn of the bad path that is kept, from 0; null: not spliced.", nullable=True),
        Column("revision_length", pa.int32(), "Turns from the start to the first bad one, itself included.", nullable=True),
        Column("reflection", pa.int32(), "Number of the reflection among the turns; null: not spliced.", nullable=True),
        Column("turns", TURNS, "The spliced trajectory, as far as it went; empty when not spliced."),
        Column("replayed", pa.bool_(), "Whether the turns after the bad ones were taken in the environment."),
        Column("reward", pa.float64(), "Final reward of the splice; that of the good path when it was not replayed."),
        Column("dropped", pa.string(), "Why it is not trained on; null when it is.", nullable=True),
        Column("message", pa.string(), "The same in words; blank when it is trained on."),
    ),
)
