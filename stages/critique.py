"""critique: accept, correct or reject the actions of every candidate; the subgoals stay as they are.

Reads    data/tasks/train.parquet, data/rounds/{round}/actions.parquet; params.yaml: critic, seed; with a judge (critic.kind
         llm or executor_then_llm) also data/rounds/{round}/subgoals.parquet and the judge's model
Writes   data/rounds/{round}/critiques.parquet
Paper    MOAT, section 4.2 and Algorithm 1: (s, a) when accepted, (s, corrected a) otherwise; the critic is a judge model
Differs  the tiny profile's critic is the executor: in its world it decides every case. A judge's correction must reach the
         gold answer, and an answer without a readable verdict is never trained on

    python -m moat.launch stages/critique.py --round 1
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from moat import layout
from moat.executor import Outcome
from moat.judge_prompt import Case
from moat.judging import Acted, Judge, check_unparsed, criticise
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import ROUND, Counts, Stage, main
from moat.toolbox import goal_of, open_toolbox
from moat.tools.docs import documentation
from moat.turns import history, shown


def candidates(table: pl.DataFrame) -> list[Acted]:
    """Every acted candidate as a critic reads it, in the table's order."""
    return [
        Acted(
            Case(
                domain=row["domain"],
                text="\n".join([row["text"], *(f"{turn.subgoal} -> {shown(turn.result)}" for turn in history(row) or ())]),
                tools=documentation(row["domain"]),
                subgoals=row["subgoals"],
                actions=row["actions"],
                gold_actions=row["gold_actions"],
                gold_answer=row["gold_answer"],
            ),
            goal_of(row),
            Outcome(row["outcome"]),
            row["finish_reason"] == "stop",
        )
        for row in table.iter_rows(named=True)
    ]


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.table("critiques", round)
    settings = params.critic
    actions_path, subgoals_path = layout.table("actions", round), layout.table("subgoals", round)
    reads = [layout.TRAIN_TASKS, actions_path, subgoals_path]
    stage.header(f"critic {settings.kind}, round {round}", reads, [target])
    actions = ACTIONS.read(actions_path)
    acted = actions.join(
        SUBGOALS.read(subgoals_path).select("task_id", "k", "subgoals"), on=["task_id", "k"], maintain_order="left"
    ).join(TASKS.read(layout.TRAIN_TASKS), on="task_id", maintain_order="left")

    def judge() -> Judge:
        from moat.judge_engine import open_judge  # loads torch, which the critics without a model do without

        return open_judge(settings, stage)

    judgement = criticise(settings, candidates(acted), open_toolbox(stage, acted["domain"]), judge)
    check_unparsed(judgement.answers, params.limits.max_unparsed)
    table = [
        {
            "task_id": task_id,
            "k": k,
            "verdict": critique.verdict.value,
            "corrected_actions": critique.corrected_actions,
            "corrected_subgoals": critique.corrected_subgoals,
            "reason": critique.reason,
        }
        for (task_id, k), critique in zip(acted.select("task_id", "k").iter_rows(), judgement.critiques, strict=True)
    ]
    counts = Counts(len(actions), len(table))
    facts = stage.facts(counts=counts, **judgement.facts)
    facts["params"]["critic"] = settings.deciding()
    CRITIQUES.write(target, table, facts | {"asked": len(judgement.answers)})
    verdicts = Counter(row["verdict"] for row in table)
    stage.say(", ".join(f"{name} {n:,} ({n / len(table):.0%})" for name, n in verdicts.most_common()))
    if judgement.answers:
        unread = sum(answer.verdict.value == "unparsed" for answer in judgement.answers)
        stage.say(f"the judge was asked about {len(judgement.answers):,} candidates, {unread:,} answers could not be read")
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND)
