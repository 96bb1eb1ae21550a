"""`data/rounds/r/subgoals.parquet`: K sampled plans per task. Written by `sample@r`."""

import pyarrow as pa

from moat.tables import Column, Table

SUBGOALS = Table(
    name="subgoals",
    version=2,
    key=("task_id", "k"),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("k", pa.int32(), "Number of the candidate, from 0."),
        Column("subgoals", pa.string(), "The sampled plan, empty when the planner said nothing."),
        Column("finish_reason", pa.string(), "stop, or length: max_new_tokens. Null: the engine failed.", nullable=True),
        Column("n_tokens", pa.int32(), "Generated tokens without the end token."),
        Column(
            "logprob",
            pa.float64(),
            "Log-probability (nats) of the generated tokens and the end token, at temperature 1.",
        ),
        Column("seed", pa.int64(), "The request's seed: a hash of run seed, round, task_id and k."),
        Column(
            "dropped",
            pa.string(),
            "Why it goes no further (empty, length, stop, engine failed), or null.",
            nullable=True,
        ),
    ),
)
