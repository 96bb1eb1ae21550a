"""train_grounder: teach the grounder to act on the plans that the planner really writes.

Reads    data/rounds/{round}/sft.parquet, data/demos/grounder.parquet, models/grounder/{0,prev} (adapters:
         models/base too); params.yaml: train_grounder, mode, independent, cold_start.grounder, init_from, lora, format,
         max_length, seed
Writes   models/grounder/{round}
Paper    MOAT, section 4.2: SFT, 2 epochs, learning rate 2e-5, batch 128
Differs  under `mode: independent` the grounder goes on with its own demonstrations for as many updates

    python -m moat.launch stages/train_grounder.py --round 1 --prev 0
"""

from __future__ import annotations

from moat import adapters, layout, models, training
from moat.examples import demo_examples, grounder_examples
from moat.params import Sft
from moat.schemas.demos import DEMOS
from moat.schemas.sft import SFT
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer, Role


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.model("grounder", round)
    settings: Sft = params.train_grounder
    start = layout.model("grounder", prev if params.init_from == "previous" else "0")
    sft_path = layout.table("sft", round)
    reads = [sft_path, *adapters.parts(start), *([layout.demos("grounder")] if params.mode == "independent" else [])]
    stage.header(f"tune the grounder, round {round}, {params.mode}", reads, [target])
    renderer = Renderer(models.load_tokenizer(start), params.format)
    rows, names, counts = grounder_examples(renderer, SFT.read(sft_path), params.max_length)
    read = ("train_grounder", "mode", "independent", "cold_start.grounder", "init_from", "lora", "format", "max_length")
    if not params.train_grounder.enabled or not rows:
        stage.say("train_grounder.enabled is false: the grounder stays" if rows else "no rows: the grounder stays")
        counts = Counts(counts.rows_in, 0, {"not trained on": counts.rows_in})
        models.copy(start, target, stage.facts(*read, "seed", counts=counts))
        stage.close(counts)
        return
    updates = training.updates_for(settings, len(rows))
    seed = seed_of(params.seed, "train_grounder", round)
    if params.mode == "independent":
        demos = DEMOS.read(layout.demos("grounder"))
        rows, names, counts = demo_examples(renderer, demos, Role.GROUNDER, params.max_length)
        updates *= params.independent.factor
        settings = params.cold_start["grounder"].model_copy(update={"learning_rate": params.independent.learning_rate})
    training.train_sft(
        stage,
        start=start,
        target=target,
        rows=rows,
        names=names,
        settings=settings,
        seed=seed,
        updates=updates,
        facts=stage.facts(*read, "seed", counts=counts),
    )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)
