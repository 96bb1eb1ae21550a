"""check_gold: every task's gold actions, run with the real tools and graded as any answer is.

Reads    data/tasks/{train,eval}.parquet, data/corpus/{passages.parquet,index}; params.yaml: tools, seed, limits
Writes   data/tasks/gold.parquet, a row per task: reached, or why not
Paper    the paper takes its gold as it is; a task whose gold misses its own answer can neither be scored nor passed
Differs  prepare has dropped what it could run; what needs a corpus and a reader is run here, and kept whatever comes of it

    python -m moat.launch stages/check_gold.py
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from moat import layout
from moat.executor import outcome
from moat.schemas.gold import GOLD
from moat.schemas.tasks import TASKS
from moat.stage import Counts, Stage, main
from moat.toolbox import Toolbox, goal_of, open_toolbox

Row = dict[str, Any]
NONE, NOT_RUN = "none", "not_run"


def checked(split: str, rows: list[Row], toolbox: Toolbox, without: str) -> list[Row]:
    """A row of the gold table for each task; `without` says why `qa` is not run, or is empty when it is."""
    made = []
    runnable = [row for row in rows if row["gold_actions"] and not (without and row["domain"] == "qa")]
    came = dict(
        zip(
            (row["task_id"] for row in runnable),
            toolbox.run([(row["gold_actions"], goal_of(row)) for row in runnable]),
            strict=True,
        )
    )
    for row in rows:
        execution = came.get(row["task_id"])
        made.append(
            {
                "split": split,
                "task_id": row["task_id"],
                "source": row["source"],
                "outcome": (NOT_RUN if row["gold_actions"] else NONE)
                if execution is None
                else outcome(execution, row["gold_answer"], goal_of(row).metric).value,
                "answer": execution and execution.answer,
                "message": execution.message if execution else without if row["gold_actions"] else "",
            }
        )
    return made


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    reads = [layout.TRAIN_TASKS, layout.EVAL_TASKS, layout.PASSAGES, layout.CORPUS_INDEX]
    stage.header("gold through its own executor and grader", reads, [layout.GOLD])
    splits = {"train": TASKS.read(layout.TRAIN_TASKS), "eval": TASKS.read(layout.EVAL_TASKS)}
    toolbox = open_toolbox(stage, [domain for table in splits.values() for domain in table["domain"]])
    without = "" if stage.params.tools.qa.reader else "tools.qa.reader is empty: nobody answers QA"
    table = [row for split, rows in splits.items() for row in checked(split, rows.to_dicts(), toolbox, without)]
    counts = Counts(len(table), len(table))
    GOLD.write(layout.GOLD, table, stage.facts("tools", "seed", counts=counts))
    for source in sorted({row["source"] for row in table}):
        found = Counter(row["outcome"] for row in table if row["source"] == source)
        stage.say(f"{source}: " + ", ".join(f"{name} {n:,}" for name, n in found.most_common()))
    missed = [row for row in table if row["outcome"] not in ("reached", NONE, NOT_RUN)]
    if missed:
        first = missed[0]
        stage.warn(
            f"{len(missed):,} tasks whose gold misses their answer, the first {first['task_id']} of {first['source']}: "
            f"{first['message'] or first['outcome']}; {layout.GOLD} lists them"
        )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run)
