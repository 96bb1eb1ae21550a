"""base_model: the model that both roles start from, with its tokenizer, once.

Reads    params.yaml: base_model
Writes   models/base
Differs  the tiny profile makes and pretrains its own (`moat.base_models`); other profiles take a pretrained one

    python -m moat.launch stages/base_model.py
"""

from __future__ import annotations

from moat import base_models, layout
from moat.making_base import Embedded, make
from moat.stage import Stage, main
from moat.tools.docs import documentation
from moat.worlds.stories import sentences


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    stage.header("the base model and its tokenizer", [], [layout.BASE_MODEL])

    def embedded() -> Embedded:
        iterative = stage.params.planning == "iterative"
        return Embedded(base_models.phrases([documentation("arithmetic")], iterative), sentences)

    make(stage, embedded, stage.facts("base_model", "planning"))
    stage.close()


if __name__ == "__main__":
    main(__file__, run)
