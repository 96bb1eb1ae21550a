"""`data/evals/r.parquet`: round r's planner and grounder on every evaluation task. Written by `evaluate@r`."""

import pyarrow as pa

from moat.schemas.tasks import TURNS
from moat.tables import Column, Table

EVALS = Table(
    name="evals",
    version=2,
    key=("task_id",),
    columns=(
        Column("task_id", pa.string(), "The task."),
        Column("source", pa.string(), "Name of the task source."),
        Column("trained", pa.bool_(), "Held-in (another split of this source is trained on) or held-out."),
        Column("metric", pa.string(), "How the answer is graded: number, text, yes_no, exact_match, web_step or reward."),
        Column("text", pa.string(), "The question."),
        Column("gold_actions", pa.string(), "Actions that reach the gold answer."),
        Column("gold_answer", pa.string(), "The gold answer."),
        Column("subgoals", pa.string(), "The planner's plan, decoded as params say; the turns' subgoals joined."),
        Column("actions", pa.string(), "The grounder's actions for it."),
        Column("turns", TURNS, "The turns that were played; empty where the whole plan was written at once."),
        Column("n_turns", pa.int32(), "How often the grounder was asked."),
        Column("outcome", pa.string(), "reached, not_reached, or the kind of failure."),
        Column("answer", pa.string(), "What the actions came to, or null.", nullable=True),
        Column("success", pa.bool_(), "outcome is reached."),
        Column("score", pa.float64(), "The metric's value in [0, 1]: success, or a step's success, or the reward."),
        Column("f1", pa.float64(), "Word F1 of the answer, or the operation's F1 of a step.", nullable=True),
        Column("element", pa.float64(), "1 when a step is on the right element, else 0.", nullable=True),
        Column("nll", pa.float64(), "NLL of the gold actions given the plan, nats per token.", nullable=True),
        Column("samples", pa.list_(pa.string()), "Plans sampled at the temperature of `sample`."),
        Column("samples_nll", pa.list_(pa.float64()), "NLL of the gold actions given each; NaN for an unusable one."),
        Column("control_task_id", pa.string(), "The other task whose plan the control gives to the grounder."),
        Column("control_outcome", pa.string(), "outcome of the actions for that other task's plan."),
        Column("control_nll", pa.float64(), "NLL of the gold actions given that other plan.", nullable=True),
    ),
)
