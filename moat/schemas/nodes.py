"""`agent_r/data/rounds/r/nodes.parquet`: every turn that a search took, as a tree. Written by `search@r`."""

import pyarrow as pa

from moat.tables import Column, Table

NODES = Table(
    name="nodes",
    version=1,
    key=("task_id", "node"),
    columns=(
        Column("task_id", pa.string(), "The task, whose tree it is."),
        Column("node", pa.int32(), "Number in the tree, from 0 (the root, before any turn), in the order of making."),
        Column("parent", pa.int32(), "The node before; null for the root.", nullable=True),
        Column("depth", pa.int32(), "Turns from the root."),
        Column("text", pa.string(), "What the actor said; blank for the root."),
        Column("kind", pa.string(), "action, reflection, unreadable, or root."),
        Column("action", pa.string(), "The action; blank where there is none."),
        Column("observation", pa.string(), "What was answered; the root's is the first observation."),
        Column("reward_raw", pa.float64(), "The environment's score so far, as it gives it."),
        Column("reward", pa.float64(), "The score so far from 0 to 1."),
        Column("terminal", pa.bool_(), "Whether the environment ended the episode."),
        Column("end", pa.bool_(), "Whether a path ends here: terminal, at the depth limit, or over max_length."),
        Column("refused", pa.bool_(), "Whether the environment refused the action."),
        Column("repeated", pa.bool_(), "Whether the same action had been taken in the same state before."),
        Column("simulated", pa.bool_(), "Made by a rollout, and not one of its parent's expanded turns."),
        Column("visits", pa.int32(), "Rollouts that went through it; 0: never chosen."),
        Column("value", pa.float64(), "Mean final reward of those rollouts, Q; 0 without any."),
        Column("n_tokens", pa.int32(), "Generated tokens of the turn; 0 for the root."),
        Column("logprob", pa.float64(), "Log-probability (nats) of the turn under the actor."),
    ),
)
