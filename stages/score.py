"""score: how well the grounder of the round before predicts the gold actions from each candidate.

Reads    data/tasks/train.parquet, data/rounds/{round}/subgoals.parquet, models/grounder/{prev} (an adapter:
         models/base too); params.yaml: score, format, max_length, limits
Writes   data/rounds/{round}/scores.parquet
Paper    MOAT, section 4.1: PPL = exp(-(1/|a|) sum_i log P(a_i | a_<i, x, I, s))
Differs  |a| is read as the action tokens without the end token (score.include_end); both NLL and PPL are stored.
         A sample is scored again one by one: how far a batch moves a score is in the table's facts (noise)

    python -m moat.launch stages/score.py --round 1 --prev 0
"""

from __future__ import annotations

import math
from dataclasses import asdict

from moat import adapters, layout, models, runners
from moat.examples import OVER_LENGTH, gold_example
from moat.noise import measure
from moat.rows import ENGINE_FAILED, answered, tell
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.scoring import mean_nll, perplexity
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target, model = stage.params, layout.table("scores", round), layout.model("grounder", prev)
    candidates_path = layout.table("subgoals", round)
    reads = [layout.TRAIN_TASKS, candidates_path, *adapters.parts(model)]
    stage.header(f"PPL of the gold actions given each plan, round {round}", reads, [target])
    candidates = SUBGOALS.read(candidates_path)
    usable = candidates.filter(candidates["dropped"].is_null()).join(
        TASKS.read(layout.TRAIN_TASKS), on="task_id", how="inner", maintain_order="left"
    )
    runner = runners.runner(stage, model, params.limits.max_failed, "grounder", scores=True)
    renderer = Renderer(models.load_tokenizer(model), params.format)
    keys, examples = [], []
    for row in usable.iter_rows(named=True):
        example = gold_example(renderer, row, "gold_actions")
        if len(example) <= params.max_length:
            keys.append((row["task_id"], row["k"]))
            examples.append(example)
    with stage.progress("scoring", len(examples)) as advance:
        found = runner.score(examples, [task for task, _ in keys], advance)
        scored = answered(examples, found)
        keys, logprobs = answered(keys, found), answered(found, found)
        noise = measure(
            lambda some: runner.score_alone(some, lambda n: None),
            scored,
            logprobs,
            params.score.include_end,
            seed_of(0, "noise", round),  # no rerun for another seed of the run
        )
    include_end = params.score.include_end
    nlls = [mean_nll(values, include_end) for values in logprobs]
    table = [
        {
            "task_id": task,
            "k": k,
            "nll": nll,
            "ppl": perplexity(nll),
            "n_action_tokens": len(values) - (not include_end),
        }
        for (task, k), nll, values in zip(keys, nlls, logprobs, strict=True)
    ]
    drops = {"unusable candidate": len(candidates) - len(usable), OVER_LENGTH: len(usable) - len(examples)}
    drops[ENGINE_FAILED] = len(examples) - len(table)
    counts = Counts(len(candidates), len(table), drops)
    facts = stage.facts("score", "format", "max_length", counts=counts, **runner.facts)
    SCORES.write(target, table, facts | {"noise": asdict(noise)})
    if table:
        stage.say(f"geometric mean PPL {math.exp(sum(nlls) / len(nlls)):.4f}")
    tell(stage, runner)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)
