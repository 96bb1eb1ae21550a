"""A small checkout of Agent-R's pipeline: a few TextCraft tasks, an actor that knows what can be said, and nothing else yet.

    checkout = build(tmp_path, {"search.n": 3})
    checkout.run("search", round="1", prev="0")
    checkout.read(TREES, layout.table("trees", "1"))

The tasks' table is as `prepare` writes it, from the package's own goals of depth 1. The actor was not trained on them, but
for a moment on what can be said at all (the tasks' gold turns, `inventory`, a reflection, a word that is no action; each a
token), and says any of it whenever it is asked. So some of what it does is refused, and now and then a task is solved.
"""

import contextlib
import importlib.util
import re
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from moat import layout
from moat.agent_r import turns, worlds
from moat.agent_r.params import AgentParams
from moat.environments.textcraft import TextCraft
from moat.machine import Machine
from moat.params import load_as, yaml
from moat.schemas.goals import GOALS
from moat.stage import Stage
from moat.tables import Table
from moat.tokens import Renderer

ROOT = Path(__file__).resolve().parent.parent
REFLECTION = f"Thought: {turns.REFLECTIONS[0]}"
OTHERS = ("Action: inventory", REFLECTION, "Hm.")  # what is said besides the gold turns


def small_params(root: Path, changes: dict[str, Any]) -> AgentParams:
    """The pipeline's params.yaml with TextCraft alone, three tasks each, small trees, and `changes` (dotted key: value)."""
    parser = yaml()
    params = parser.load((ROOT / "agent_r" / "params.yaml").read_text(encoding="utf-8"))
    params["environments"] = {"textcraft": dict(params["environments"]["textcraft"])}
    params["environments"]["textcraft"] |= {"depths": [1], "distractors": 1, "max_gold": 2}
    params["environments"]["textcraft"] |= {"n_demos": 3, "n_train": 3, "n_eval": 3}
    params["train_on"] = ["textcraft"]
    params["search"] |= {"iterations": 5, "n": 3, "depth": 8, "max_new_tokens": 4}
    params["evaluate"] |= {"max_turns": 6, "max_new_tokens": 4}
    params["recovery"] |= {"attempts": 2, "max_turns": 5, "max_new_tokens": 4}
    for key, value in changes.items():
        *above, last = key.split(".")
        section = params
        for name in above:
            section = section[name]
        section[last] = value
    root.mkdir(parents=True, exist_ok=True)
    with (root / "params.yaml").open("w", encoding="utf-8") as file:
        parser.dump(params, file)
    (root / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    return load_as(root / "params.yaml", AgentParams)


def goals(params: AgentParams, evaluation: bool) -> list[dict[str, Any]]:
    """The tasks of training or of evaluation, as rows of their table."""
    world = params.environments["textcraft"]
    rows = []
    with TextCraft(distractors=world.distractors) as environment, environment.episode() as episode:
        for number, goal in enumerate(worlds.candidates(environment, world, evaluation)):
            if number == (world.n_eval if evaluation else max(world.n_train, world.n_demos)):
                break
            rows.append(
                {
                    "task_id": goal.task,
                    "environment": "textcraft",
                    "kind": goal.kind,
                    "demonstrated": not evaluation and number < world.n_demos,
                    "searched": not evaluation and number < world.n_train,
                    "instruction": worlds.instruction(world),
                    "first": episode.reset(goal.task),
                    "gold": list(goal.gold or ()),
                }
            )
    return rows


@cache
def actor(texts: tuple[str, ...], said: tuple[str, ...]) -> tuple[Any, Any]:
    """A tokenizer of these texts, with a token for each turn that is `said`, and a model that says any of them, and ends.

    The model is trained for a moment on every turn after every text, so that it comes to say each as often.
    """
    import torch

    from moat.base_models import scratch_model, word_tokenizer

    torch.set_num_threads(1)
    words = {word for text in [*texts, turns.ACKNOWLEDGED, turns.NOT_READ] for word in re.findall(" ?[A-Za-z]+", text)}
    tokenizer = word_tokenizer([*said, *sorted(words)])
    renderer, model = Renderer(tokenizer, "lumos"), scratch_model(len(tokenizer), 16, 2, 2, 1024, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    prompts = [renderer.conversation([text, turn, turns.NOT_READ]) for text, turn in zip(texts, said, strict=False)]
    prompts += [turn[:1] for turn in prompts]
    for update in range(60):
        prompt = [token for turn in prompts[update % len(prompts)] for token in turn]
        ids = torch.tensor([[*prompt, *renderer.completion(turn)] for turn in said])
        logits = model(input_ids=ids, logits_to_keep=3).logits[:, :2]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -2:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return tokenizer, model.eval()


@cache
def stage_module(name: str) -> Any:
    """agent_r/stages/NAME.py as a module, without running it."""
    spec = importlib.util.spec_from_file_location(f"agent_r_stage_{name}", ROOT / "agent_r" / "stages" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class AgentCheckout:
    """The checkout in `place`; the pipeline's folder, which paths are relative to, is `root`."""

    place: Path
    params: AgentParams

    @property
    def root(self) -> Path:
        return self.place / "agent_r"

    def stage(self, name: str, machine: Machine | None = None, **arguments: str) -> Stage[AgentParams]:
        """A stage's run, with its journal and notes in the checkout."""
        return Stage(name, self.params, machine or Machine(device="cpu"), self.root, arguments)

    def run(self, name: str, machine: Machine | None = None, **arguments: str) -> None:
        """Run a stage: `run("search", round="1", prev="0")`."""
        with contextlib.chdir(self.root):
            stage_module(name).run(self.stage(name, machine, **arguments), **arguments)

    def read(self, schema: Table, path: Path) -> list[dict[str, Any]]:
        """A table's rows."""
        return schema.read(self.root / path).to_dicts()

    def write_goals(self) -> None:
        """Write the tasks' tables, as the settings have them."""
        for evaluation, path in ((False, layout.TRAIN_TASKS), (True, layout.EVAL_TASKS)):
            GOALS.write(self.root / path, goals(self.params, evaluation), {})

    def change(self, changes: dict[str, Any]) -> None:
        """Set dotted keys of params.yaml, besides those of the beginning."""
        self.params = small_params(self.root, changes)


def build(place: Path, changes: dict[str, Any] | None = None, rounds: tuple[str, ...] = ("0",)) -> AgentCheckout:
    """Make a checkout in `place`, with the settings `changes` (dotted key: value), and the actor after these rounds."""
    from moat import models

    checkout = AgentCheckout(place, small_params(place / "agent_r", changes or {}))
    every = [row for evaluation in (False, True) for row in goals(checkout.params, evaluation)]
    gold = dict.fromkeys(f"Action: {action}" for row in every for action in row["gold"])
    tokenizer, model = actor(tuple(row["instruction"] + row["first"] for row in every), (*gold, *OTHERS))
    checkout.write_goals()
    with contextlib.chdir(checkout.root), tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in (layout.BASE_MODEL, *(layout.model("actor", key) for key in rounds)):
            models.save(model, path, {"stage": "test"}, Path(folder))
    return checkout
