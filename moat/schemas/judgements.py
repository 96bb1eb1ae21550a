"""`agent_r/data/rounds/r/judgements.parquet`: every step of each bad path that is in a pair, judged once.

Written by `revise@r`.
"""

import pyarrow as pa

from moat.tables import Column, Table

JUDGEMENTS = Table(
    name="judgements",
    version=1,
    key=("task_id", "bad", "turn"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("bad", pa.int32(), "The node at which the bad path ends."),
        Column("turn", pa.int32(), "Number of the turn in the path, from 0."),
        Column("node", pa.int32(), "The turn's node."),
        Column("label", pa.string(), "good, bad, uncertain or unparsed, by the judge of params.yaml."),
        Column("reasons", pa.string(), "What the judge wrote; blank for one that writes nothing."),
        Column("tree", pa.string(), "good or bad by the search tree: bad where the best reward seen below falls."),
        Column("refused", pa.bool_(), "Whether the environment refused the action."),
    ),
)
