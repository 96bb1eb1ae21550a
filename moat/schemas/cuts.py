"""`agent_r/data/recovery.parquet`: failed trajectories of the base actor, cut. Written by `recovery_set`, once."""

import pyarrow as pa

from moat.agent_r.columns import TURNS
from moat.tables import Column, Table

CUTS = Table(
    name="cuts",
    version=1,
    key=("cut_id",),
    columns=(
        Column("cut_id", pa.string(), "TASK#ATTEMPT#CUT, where CUT is the number of turns that are kept."),
        Column("task_id", pa.string(), "The task."),
        Column("environment", pa.string(), "Name of the environment in params.yaml."),
        Column("kind", pa.string(), "As in the evaluation's tasks."),
        Column("first", pa.string(), "The first observation."),
        Column("n_failed", pa.int32(), "Turns of the failed trajectory."),
        Column("turns", TURNS, "Its turns up to the cut, none of which ended the episode."),
    ),
)
