"""The science of an Agent-R run: `agent_r/params.yaml` as typed, checked settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moat.environments.textworld_express import GAMES
from moat.params import Decoded, Pipeline, Positive, Section, Sft, Share, Updates

Mode = Literal["agent_r", "direct_revision", "optimal_only", "optimal_plus_good", "bc"]


class World(Section):
    """How many tasks of an environment are drawn for what; those of training and of evaluation are different tasks."""

    optional: bool = Field(description="Whether it is left out, with a notice, where Java or its package is missing.")
    n_demos: int = Field(ge=0, description="Tasks whose gold actions the cold start is taught.")
    n_train: Positive = Field(description="Tasks that the rounds search; the demonstrated ones come first.")
    n_eval: Positive = Field(description="Tasks of the evaluation.")
    max_gold: int = Field(ge=0, description="Longest gold path of a task, in actions; 0: any, and tasks without one too.")
    draw: str = Field(description="Name of the draw; another name, other tasks.")


class TextCraftWorld(World):
    """Goals of TextCraft, trained and evaluated ones apart."""

    kind: Literal["textcraft"]
    depths: list[Annotated[int, Field(ge=1, le=4)]] = Field(min_length=1, description="Recipes one on the other.")
    groups: bool = Field(description="Whether a goal may need any item of a group, such as planks.")
    distractors: int = Field(ge=0, le=10, description="Recipes in the prompt that the goal does not need.")


class TextWorldExpressWorld(World):
    """A game of TextWorldExpress; the evaluation is of the package's test fold."""

    kind: Literal["textworld_express"]
    game: str
    settings: dict[str, int] = Field(description="The game's own settings.")

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.game not in GAMES:
            raise ValueError(f"game: {self.game!r} is none of {', '.join(GAMES)}")
        return self


class ScienceWorldWorld(World):
    """Kinds of ScienceWorld's tasks; training and evaluation are the package's train and test variations."""

    kind: Literal["scienceworld"]
    kinds: list[str] = Field(description="Empty: all thirty.")
    simplifications: str = Field(description="Such as easy; empty: none.")


class AgentGymWorld(World):
    """Tasks of a server of AgentGym (`agentgym` in machine.yaml), by number."""

    kind: Literal["agentgym"]
    environment: Literal["textcraft", "sciworld", "webshop"]
    first_train: int = Field(ge=0, description="Number of the first training task.")
    first_eval: int = Field(ge=0, description="Number of the first evaluation task.")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.n_demos:
            raise ValueError("n_demos: the servers give no gold actions; set it to 0")
        if max(self.first_train, self.first_eval) < min(self.first_train + self.n_train, self.first_eval + self.n_eval):
            raise ValueError("first_train, first_eval: the training and the evaluation tasks overlap")
        return self


AnyWorld = Annotated[TextCraftWorld | TextWorldExpressWorld | ScienceWorldWorld | AgentGymWorld, Field(discriminator="kind")]


class Round(Section):
    """A round: whose actor it starts from, what counts as good, and how long it trains."""

    prev: str
    alpha: Share = Field(description="A trajectory is good when its reward is over this, at 1 when it is 1.")
    epochs: float = Field(gt=0)


class Limits(Section):
    """When a stage stops instead of going on. No value here changes a row."""

    max_failed: Share = Field(description="Share of a stage's requests that the engine may fail on.")
    max_dropped: Share = Field(description="Share of a stage's tasks that may be lost to their environment.")
    max_unparsed: Share = Field(description="Share of the judged steps whose label cannot be read.")


class ColdStart(Sft):
    """The warm start from gold actions, and from labels of steps that are known."""

    enabled: bool
    repeated: int = Field(ge=0, description="Texts of random words among the demonstrations, to be repeated.")
    slips: int = Field(ge=0, description="Gold trajectories with a wrong action each, for each demonstrated task.")
    judged: int = Field(ge=0, description="Judged steps among the demonstrations, for each demonstrated task.")


class Search(Decoded):
    """The tree search of a task."""

    iterations: Positive = Field(description="Rollouts of a tree.")
    n: Positive = Field(description="Turns drawn where a node is expanded; equal actions are one child.")
    depth: Positive = Field(description="Turns of a path at most.")
    c: float = Field(ge=0, description="Of UCT: weight of what was tried little.")
    stop_when_solved: bool


class Pairs(Section):
    """Which bad and good paths of a tree make a pair."""

    beta: Share
    beta_rule: Literal["gap", "threshold"]
    max_per_tree: Positive


class Judge(Decoded):
    """Who finds the step at which a bad path went wrong."""

    kind: Literal["actor", "actor_label", "tree"]
    no_turn: Literal["drop", "end"]


class Splice(Section):
    """How a good path's actions follow on a bad path's."""

    replay: Literal["required", "off"]


class General(Section):
    """Conversations of a general kind, in ShareGPT's format or as chat messages: of a file, of the hub, or none."""

    file: str = Field(description="Path under agent_r/data/sources; empty: none.")
    hub: str = Field(description="Id of a data set of the hub; empty: none.")
    revision: str = Field(description="The hub's commit, 40 hexadecimal digits.")
    split: str = Field(description="Of the hub's data set.")
    data_file: str = Field(description="One file of the hub's data set; empty: all.")
    n: int = Field(ge=0, description="Conversations that are drawn for a round; 0: all.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.file and self.hub:
            raise ValueError("set file or hub, not both")
        if Path(self.file).is_absolute() or ".." in Path(self.file).parts:
            raise ValueError(f"file: {self.file!r} is not under agent_r/data/sources: put it (or a link to it) there")
        if self.hub and not (self.split and re.fullmatch("[0-9a-f]{40}", self.revision)):
            raise ValueError("hub: set split, and revision to the data set's commit (40 hexadecimal digits)")
        return self


class Mix(Section):
    """What the actor learns from, and how much each part counts."""

    eta: Share = Field(
        gt=0, description="Weight of the losses of good and of revised trajectories; the general's is the rest."
    )
    max_good: Positive = Field(description="Good trajectories of a tree.")
    general: General


class Train(Updates):
    """The actor's update; how many epochs it takes is the round's."""

    updates: int = Field(ge=0, description="0: by epochs. Else the number of a round's updates, in every mode.")

    def sft(self, epochs: float) -> Sft:
        """As a fine-tuning of so many epochs."""
        return Sft(epochs=epochs, **self.model_dump(exclude={"updates"}))


class Evaluate(Decoded):
    """Playing from the start."""

    max_turns: Positive


class Recovery(Decoded):
    """Failed trajectories of the base actor, cut, and going on from the cuts. The decoding is that of the failures."""

    attempts: Positive = Field(description="Trajectories drawn of each evaluation task.")
    cuts: Positive = Field(description="Cuts of each failed trajectory.")
    max_turns: Positive


class AgentParams(Pipeline):
    """All of agent_r/params.yaml."""

    mode: Mode
    several: Literal["last", "refuse"]
    limits: Limits
    rounds: dict[str, Round]
    environments: dict[str, AnyWorld] = Field(min_length=1)
    train_on: list[str] = Field(min_length=1, description="The environments whose tasks are trained on.")
    cold_start: ColdStart
    search: Search
    pairs: Pairs
    judge: Judge
    splice: Splice
    mix: Mix
    train: Train
    evaluate: Evaluate
    recovery: Recovery

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.train_on)) < len(self.train_on):
            raise ValueError("train_on names an environment twice")
        for name in self.train_on:
            if name not in self.environments:
                raise ValueError(f"train_on: {name!r} is none of the environments {', '.join(self.environments)}")
        if self.mode == "bc" and not self.train.updates:
            raise ValueError("mode bc searches nothing, so no set says how long it trains: set train.updates")
        if self.mode == "bc" and not any(self.environments[name].n_demos for name in self.train_on):
            raise ValueError("mode bc trains on demonstrations: set n_demos of an environment in train_on")
        if self.cold_start.enabled and not any(self.environments[name].n_demos for name in self.train_on):
            raise ValueError("cold_start.enabled is true, and no environment in train_on has n_demos")
        return self

    def before(self) -> Mapping[str, str]:
        """Every round by its key, with the round whose models it starts from."""
        return {key: entry.prev for key, entry in self.rounds.items()}

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest turn or judgement."""
        return self.max_length + max(one.max_new_tokens for one in (self.search, self.judge, self.evaluate, self.recovery))

    def alpha(self, round_key: str) -> float:
        """The round's threshold of a good trajectory."""
        return self.rounds[round_key].alpha


def good(reward: float, alpha: float) -> bool:
    """Whether a trajectory of this reward is a good one: over alpha, and at alpha = 1 the full reward."""
    return reward >= 1 if alpha >= 1 else reward > alpha
