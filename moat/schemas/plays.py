"""`agent_r/data/evals/r.parquet` and `agent_r/data/recoveries/r.parquet`: what an actor did. Written by `evaluate@r`."""

import pyarrow as pa

from moat.agent_r.columns import TURNS
from moat.tables import Column, Table

PLAYS = Table(
    name="plays",
    version=1,
    key=("play_id",),
    columns=(
        Column("play_id", pa.string(), "The task; in a recovery the cut."),
        Column("task_id", pa.string(), "The task."),
        Column("environment", pa.string(), "Name of the environment in params.yaml."),
        Column("kind", pa.string(), "As in the tasks."),
        Column("given", pa.int32(), "Turns of the base actor that came before; 0 from the start."),
        Column("turns", TURNS, "The turns of this actor, those given left out."),
        Column("reward_raw", pa.float64(), "The environment's final score."),
        Column("reward", pa.float64(), "The final score from 0 to 1."),
        Column("success", pa.bool_(), "Whether the final reward is 1."),
        Column("ended", pa.string(), "terminal, turns (the limit), length (max_length), or the reason of a drop."),
        Column("n_turns", pa.int32(), "Turns of this actor."),
        Column("n_reflections", pa.int32(), "Those that were reflections."),
        Column("n_invalid", pa.int32(), "Those that could not be read or that the environment refused."),
        Column("n_repeated", pa.int32(), "Those that took an action again in a state in which it had been taken."),
        Column("dropped", pa.string(), "Why the play does not count; null when it does.", nullable=True),
        Column("message", pa.string(), "The same in words; blank when it counts."),
    ),
)
