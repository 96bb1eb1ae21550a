"""train: the actor learns from a round's trajectories, revised and good, and from general conversations.

Reads    data/rounds/{round}/sft.parquet, models/actor/{0,prev} (adapters: models/base too); params.yaml: train,
         rounds.{round}.epochs, init_from, lora, format, max_length, seed
Writes   models/actor/{round}
Paper    Agent-R, section 4.1: learning rate 2e-5, three epochs in the first round, then one
Differs  `train.updates` sets the number of updates, so that modes are compared at equal ones

    python -m moat.launch stages/train.py --round 1 --prev 0
"""

from __future__ import annotations

from moat import adapters, layout, models, training
from moat.agent_r.examples import conversations
from moat.agent_r.params import AgentParams
from moat.schemas.trained import TRAINED
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Stage, main
from moat.tokens import Renderer


def run(stage: Stage[AgentParams], round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target, source = stage.params, layout.model("actor", round), layout.table("sft", round)
    start = layout.model("actor", prev if params.init_from == "previous" else "0")
    before = layout.model("actor", prev)
    stage.header(f"train the actor, round {round}", [source, *adapters.parts(*dict.fromkeys((start, before)))], [target])
    table = TRAINED.read(source)
    renderer = Renderer(models.load_tokenizer(start), params.format)
    rows, names, counts = conversations(renderer, table, params.max_length)
    read = ("train", f"rounds.{round}.epochs", "init_from", "lora", "format", "max_length", "seed")
    if not rows:
        stage.warn(f"no rows: the actor stays as round {prev} left it")
        models.copy(before, target, stage.facts(*read, counts=counts))
        stage.close(counts)
        return
    weight = dict(zip(table["row_id"], table["weight"], strict=True))
    training.train_sft(
        stage,
        start=start,
        target=target,
        rows=rows,
        names=names,
        settings=params.train.sft(params.rounds[round].epochs),
        seed=seed_of(params.seed, "train", round),
        updates=params.train.updates or None,
        weights=[weight[name] for name in names],
        facts=stage.facts(*read, counts=counts),
    )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV, params=AgentParams)
