"""`data/rounds/r/dynamics.parquet`: how a round learned, in long form, ready to plot. Written by `dynamics@r`."""

import pyarrow as pa

from moat.tables import Column, Table

DYNAMICS = Table(
    name="dynamics",
    version=1,
    key=("part", "name", "update"),
    columns=(
        Column(
            "part",
            pa.string(),
            "planner, grounder (the updates), samples, scores, pairs or critiques (the tables of the round).",
        ),
        Column("name", pa.string(), "The figure, such as logps/chosen, gap_ppl/p50 or entropy."),
        Column("update", pa.int32(), "The update after which it was logged, from 1; 0: a figure of the whole round."),
        Column("value", pa.float64(), "Its value: log-probabilities and NLL in nats, lengths in tokens, shares of 1."),
    ),
)
