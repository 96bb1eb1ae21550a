"""cold_start: round 0, the actor before any search: gold trajectories and judged steps, or the base model as it is.

Reads    models/base, data/demos/actor.parquet; params.yaml: cold_start, lora, format, max_length, seed
Writes   models/actor/0: a whole model, or with `lora.rank` the adapter alone
Differs  the paper has no warm start (`cold_start.enabled: false`); an actor made from nothing has to be shown what acting
         and judging are

    python -m moat.launch stages/cold_start.py
"""

from __future__ import annotations

from moat import layout, models, training
from moat.agent_r.examples import conversations
from moat.agent_r.params import AgentParams
from moat.schemas.dialogues import DIALOGUES
from moat.seeds import seed_of
from moat.stage import Stage, main
from moat.tokens import Renderer


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.model("actor", "0")
    stage.header("teach the actor what acting is", [layout.BASE_MODEL, layout.demos("actor")], [target])
    read = ("cold_start", "lora", "format", "max_length", "seed")
    if not params.cold_start.enabled:
        stage.say("cold_start.enabled is false: round 0 is the base model")
        models.copy(layout.BASE_MODEL, target, stage.facts(*read))
        stage.close()
        return
    renderer = Renderer(models.load_tokenizer(layout.BASE_MODEL), params.format)
    rows, names, counts = conversations(renderer, DIALOGUES.read(layout.demos("actor")), params.max_length)
    training.train_sft(
        stage,
        start=layout.BASE_MODEL,
        target=target,
        rows=rows,
        names=names,
        settings=params.cold_start,
        seed=seed_of(params.seed, "cold_start"),
        facts=stage.facts(*read, counts=counts),
    )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)
