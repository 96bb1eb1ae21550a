"""critique: accept, correct or reject the actions of every candidate; the subgoals stay as they are.

Reads    data/tasks/train.parquet, data/rounds/{round}/actions.parquet; params.yaml: critic
Writes   data/rounds/{round}/critiques.parquet
Paper    MOAT, section 4.2 and Algorithm 1: (s, a) when accepted, (s, corrected a) otherwise
Differs  the critic is the executor (or none): in the tiny world it decides every case

    python -m moat.launch stages/critique.py --round 1
"""

from __future__ import annotations

from collections import Counter

from moat import layout
from moat.critic import judge
from moat.executor import Outcome
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.tasks import TASKS
from moat.stage import ROUND, Counts, Stage, main


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    settings, target = stage.params.critic, layout.table("critiques", round)
    actions_path = layout.table("actions", round)
    stage.header(f"critic {settings.kind}, round {round}", [layout.TRAIN_TASKS, actions_path], [target])
    acted = ACTIONS.read(actions_path).join(TASKS.read(layout.TRAIN_TASKS), on="task_id", maintain_order="left")
    table = []
    for row in acted.iter_rows(named=True):
        critique = judge(
            settings.kind,
            settings.on_failure,
            came=Outcome(row["outcome"]),
            finished=row["finish_reason"] == "stop",
            domain=row["domain"],
            gold_actions=row["gold_actions"],
            gold_answer=row["gold_answer"],
        )
        table.append(
            {
                "task_id": row["task_id"],
                "k": row["k"],
                "verdict": critique.verdict.value,
                "corrected_actions": critique.corrected_actions,
                "corrected_subgoals": None,
                "reason": critique.reason,
            }
        )
    counts = Counts(len(table), len(table))
    CRITIQUES.write(target, table, stage.facts("critic", counts=counts))
    verdicts = Counter(row["verdict"] for row in table)
    stage.say(", ".join(f"{name} {n:,} ({n / len(table):.0%})" for name, n in verdicts.most_common()))
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND)
