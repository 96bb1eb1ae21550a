"""align_planner: move the planner towards the plans that the grounder can use.

Reads    data/tasks/train.parquet, data/rounds/{round}/pairs.parquet, data/demos/planner.parquet,
         models/planner/{0,prev} (adapters: models/base too); params.yaml: align, mode, independent, cold_start.planner,
         init_from, reference, lora, format, max_length, seed
Writes   models/planner/{round}
Paper    MOAT, section 4.1: DPO, learning rate 4e-7, cosine, batch 4 x 8; the reference is the planner before the update
Differs  `align.nll_weight` adds an NLL term on the chosen plan (tiny only); `align.loss: sft_chosen` is a control;
         under `mode: independent` the planner goes on with its own demonstrations for as many updates

    python -m moat.launch stages/align_planner.py --round 1 --prev 0
"""

from __future__ import annotations

from moat import adapters, layout, models, training
from moat.examples import demo_examples, planner_pairs
from moat.params import Sft
from moat.schemas.demos import DEMOS
from moat.schemas.pairs import PAIRS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer, Role


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, settings, target = stage.params, stage.params.align, layout.model("planner", round)
    before, cold = layout.model("planner", prev), layout.model("planner", "0")
    start = before if params.init_from == "previous" else cold
    reference = before if params.reference == "previous" else cold
    pairs_path = layout.table("pairs", round)
    reads, folders = [layout.TRAIN_TASKS, pairs_path], [start]
    if params.mode == "independent":
        reads.append(layout.demos("planner"))
    elif reference != start:
        folders.append(reference)
    reads += adapters.parts(*folders)
    stage.header(f"align the planner, round {round}, {params.mode}", reads, [target])
    renderer = Renderer(models.load_tokenizer(start), params.format)
    pairs = PAIRS.read(pairs_path)
    kept = pairs.filter(pairs["dropped"].is_null()).join(
        TASKS.read(layout.TRAIN_TASKS).select("task_id", "text", "turn", "turns"), on="task_id", maintain_order="left"
    )
    chosen, rejected, names, counts = planner_pairs(renderer, kept.to_dicts(), params.max_length)
    seed = seed_of(params.seed, "align_planner", round)
    read = ("align", "mode", "independent", "cold_start.planner", "init_from", "reference", "lora", "format", "max_length")
    if not settings.enabled or not chosen:
        stage.say("align.enabled is false: the planner stays" if chosen else "no pairs: the planner stays")
        counts = Counts(len(pairs), 0, {"not trained on": len(pairs)})
        models.copy(start, target, stage.facts(*read, "seed", counts=counts))
        stage.close(counts)
        return
    updates = training.updates_for(settings, len(chosen))
    how: Sft = settings
    rows = chosen
    if params.mode == "independent":
        demos = DEMOS.read(layout.demos("planner"))
        rows, names, counts = demo_examples(renderer, demos, Role.PLANNER, params.max_length)
        updates *= params.independent.factor
        how = params.cold_start["planner"].model_copy(update={"learning_rate": params.independent.learning_rate})
    facts = stage.facts(*read, "seed", counts=counts)
    if params.mode == "independent" or settings.loss == "sft_chosen":
        training.train_sft(
            stage,
            start=start,
            target=target,
            rows=rows,
            names=names,
            settings=how,
            seed=seed,
            updates=updates,
            facts=facts,
        )
    else:
        training.train_dpo(
            stage,
            start=start,
            reference=reference,
            target=target,
            chosen=chosen,
            rejected=rejected,
            names=names,
            settings=settings,
            seed=seed,
            facts=facts,
        )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)
