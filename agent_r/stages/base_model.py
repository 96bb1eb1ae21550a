"""base_model: the actor before any schooling, with its tokenizer, once.

Reads    data/tasks/{train,eval}.parquet, data/demos/actor.parquet (an embedded model's words); params.yaml: base_model
Writes   models/base
Differs  the tiny profile makes and pretrains its own, on training tasks' first observations and on random words, said twice.
         It has a token for every item that an evaluation task names, as a pretrained model would, and no text with it

    python -m moat.launch stages/base_model.py
"""

from __future__ import annotations

from functools import partial

from moat import layout
from moat.agent_r import lexicon
from moat.agent_r.params import AgentParams
from moat.making_base import Embedded, make
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.stage import Stage, main


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    stage.header(
        "the base model and its tokenizer",
        [layout.TRAIN_TASKS, layout.EVAL_TASKS, layout.demos("actor")],
        [layout.BASE_MODEL],
    )

    def embedded() -> Embedded:
        goals, tests = GOALS.read(layout.TRAIN_TASKS), GOALS.read(layout.EVAL_TASKS)
        told = DIALOGUES.read(layout.demos("actor"))["texts"].explode().unique().sort().to_list()
        firsts = goals["first"].to_list()
        known = lexicon.phrases(goals["instruction"].unique().sort(), [*firsts, *tests["first"]], told)
        return Embedded(known, partial(lexicon.sentences, firsts))

    make(stage, embedded, stage.facts("base_model"))
    stage.close()


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)
