"""`data/rounds/r/scores.parquet`: how well the grounder predicts the gold actions from each plan. Written by `score@r`."""

import pyarrow as pa

from moat.tables import Column, Table

SCORES = Table(
    name="scores",
    version=1,
    key=("task_id", "k"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("k", pa.int32(), "The candidate."),
        Column("nll", pa.float64(), "Mean negative log-likelihood of the gold action tokens, in nats per token."),
        Column("ppl", pa.float64(), "exp(nll), the perplexity; the reward of the paper is its negative."),
        Column("n_action_tokens", pa.int32(), "Gold action tokens that the mean is over."),
    ),
)
