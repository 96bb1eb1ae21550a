"""cold_start: supervised fine-tuning of one role on its demonstrations, from the base model.

Reads    models/base, data/demos/{role}.parquet; params.yaml: cold_start.{role}, lora, format, max_length, seed
Writes   models/{role}/0: a whole model, or with `lora.rank` the adapter alone
Paper    MOAT, section 5.1: 2 epochs, learning rate 2e-5, batch 128, length 1024, linear warm-up over 3%

    python -m moat.launch stages/cold_start.py --role planner
"""

from __future__ import annotations

from moat import layout, models, training
from moat.examples import demo_examples
from moat.schemas.demos import DEMOS
from moat.seeds import seed_of
from moat.stage import ROLE, Stage, main
from moat.tokens import Renderer, Role


def run(stage: Stage, role: str) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.model(role, "0")
    stage.header(f"teach the {role} its demonstrations", [layout.BASE_MODEL, layout.demos(role)], [target])
    renderer = Renderer(models.load_tokenizer(layout.BASE_MODEL), params.format)
    rows, names, counts = demo_examples(renderer, DEMOS.read(layout.demos(role)), Role(role), params.max_length)
    training.train_sft(
        stage,
        start=layout.BASE_MODEL,
        target=target,
        rows=rows,
        names=names,
        settings=params.cold_start[Role(role).value],
        seed=seed_of(params.seed, "cold_start", role),
        facts=stage.facts(f"cold_start.{role}", "lora", "format", "max_length", "seed", counts=counts),
    )
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROLE)
