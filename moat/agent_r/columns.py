"""The turns of a trajectory, as a column of several tables."""

import pyarrow as pa

TURNS = pa.list_(
    pa.struct(
        [
            ("text", pa.string()),
            ("kind", pa.string()),
            ("action", pa.string()),
            ("observation", pa.string()),
            ("reward_raw", pa.float64()),
            ("reward", pa.float64()),
            ("terminal", pa.bool_()),
            ("refused", pa.bool_()),
            ("repeated", pa.bool_()),
        ]
    )
)
"""As `moat.agent_r.play.Turn`: what was said, what it was read as, and what came of it."""
