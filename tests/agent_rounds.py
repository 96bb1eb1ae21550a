"""A checkout of Agent-R with every table, as its stages write them: searched, revised, mixed, played.

    made = build(tmp_path, {"judge.kind": "tree"})

No model is asked and none is trained. What an actor says is drawn from its request's seed, so that it is the same on every
machine. A model's folder is that of tests/agent_checkout.py, with the card that training on these tables would have
written.
"""

import contextlib
import random
import shutil
from unittest import mock

import numpy as np

from moat import layout, models, runners
from moat.agent_r.checkout import ACTOR, DEMOS
from moat.agent_r.examples import conversations
from moat.agent_r.judges import QUESTION
from moat.checks.cards import updates
from moat.engines.base import FinishReason, Generation
from moat.machine import Machine
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.trained import TRAINED
from moat.tokens import Renderer
from tests import agent_checkout

GENERAL = (
    '{"conversations": [{"from": "human", "value": "Say inventory"}, {"from": "gpt", "value": "inventory"}]}\n'
    '{"conversations": [{"from": "human", "value": "Go on"}, {"from": "gpt", "value": "Hm."}]}\n'
)
FIRST = {"1": {"prev": "0", "alpha": 0.5, "epochs": 3}}
BOTH = FIRST | {"2": {"prev": "1", "alpha": 1.0, "epochs": 1}}


class Script:
    """An engine that says what is drawn: of the task's gold turns and others; of a step one of the labels."""

    def __init__(self, made):
        self.tokenizer = models.load_tokenizer(made.root / layout.BASE_MODEL)
        tasks = [row for evaluation in (False, True) for row in agent_checkout.goals(made.params, evaluation)]
        self.gold = {row["first"]: [f"Action: {action}" for action in row["gold"]] for row in tasks}

    def generate(self, prompts, seeds, decoding):
        return [self.say(self.tokenizer.decode(ids), random.Random(seed)) for ids, seed in zip(prompts, seeds, strict=True)]

    def say(self, text, drawn):
        gold = next(turns for first, turns in self.gold.items() if first in text)
        said = [*gold, *gold, *agent_checkout.OTHERS, "Action: get 7 nothing"]
        if QUESTION in text:
            said = ["It is so. Judgment: Bad", "Judgment: Good", "Judgment: Uncertain", "I cannot say."]
        ids = self.tokenizer(drawn.choice(said), add_special_tokens=False).input_ids
        return Generation(ids, FinishReason.STOP, -1.5)

    def score(self, prompts, completions):
        asked = zip(prompts, completions, strict=True)
        return [np.full(len(own), random.Random(str([*ids, *own])).uniform(-9, 0), np.float32) for ids, own in asked]


def build(place, changes=None, rounds=FIRST):
    """Make the checkout in `place`, with the settings `changes` (dotted key: value); `rounds` as in params.yaml.

    With `mix.general.file` set there are two general conversations.
    """
    own = {"rounds": rounds, "evaluated": rounds | {"0": {"prev": ""}}}
    own |= {"environments.textcraft.n_train": 5, "environments.textcraft.n_eval": 4, "search.iterations": 12}
    own |= {"max_length": 900, "limits.max_unparsed": 1.0, "evaluate.max_turns": 6, "recovery.max_turns": 4}
    own |= changes or {}
    made = agent_checkout.build(place, own)
    if made.params.mix.general.file:
        (made.root / layout.SOURCES).mkdir(parents=True)
        (made.root / layout.SOURCES / made.params.mix.general.file).write_text(GENERAL, encoding="utf-8")
    engine = Script(made)
    with contextlib.chdir(made.root), mock.patch.object(runners, "open_engine", return_value=engine):
        made.run("prepare")
        _cold_start(made)
        made.run("recovery_set")
        made.run("evaluate", round="0")
        for key, entry in made.params.rounds.items():
            for stage in ("search", "revise", "mix"):
                made.run(stage, round=key, prev=entry.prev)
            _train(made, key, entry.prev)
            made.run("evaluate", round=key)
    return made


def _cold_start(made):
    """models/actor/0, as the stage cold_start leaves it."""
    params, target = made.params, layout.model(ACTOR, "0")
    if not params.cold_start.enabled:
        shutil.rmtree(target)
        models.copy(layout.BASE_MODEL, target, {"stage": "cold_start"})
        return
    settings = params.cold_start
    n = _fitting(made, DIALOGUES.read(DEMOS))
    _write_card(made, target, {"stage": "cold_start", "rows": n, "updates": updates(n, settings)})


def _train(made, key, prev):
    """models/actor/KEY, as the stage train leaves it."""
    params, target = made.params, layout.model(ACTOR, key)
    start = layout.model(ACTOR, prev if params.init_from == "previous" else "0")
    n = _fitting(made, TRAINED.read(layout.table("sft", key)))
    if not n:
        models.copy(start, target, {"stage": "train"})
        return
    shutil.copytree(start, target)
    steps = params.train.updates or updates(n, params.train.sft(params.rounds[key].epochs))
    _write_card(made, target, {"stage": "train", "rows": n, "updates": steps})


def _fitting(made, rows):
    """How many conversations fit max_length."""
    renderer = Renderer(models.load_tokenizer(layout.BASE_MODEL), made.params.format)
    return len(conversations(renderer, rows, made.params.max_length)[0])


def _write_card(made, folder, facts):
    log = [{"update": number + 1, "loss": 1.0 / (number + 1)} for number in range(facts["updates"])]
    models.write_card(folder, facts | {"log": log} | models.engine_facts(Machine(device="cpu")))
