"""What runs again after a change: `dvc repro --dry` on a whole project whose stages are all up to date.

Training is left out: a stand-in for the launcher, which is no stage's dependency, writes each output as a hash of what the
stage reads under data/ and models/. Stages, dependencies and parameters are the project's own.

A dry run of DVC names the stages whose own parameters or files have changed. What follows them runs if, and only if, the
bytes of their outputs change; that is tested apart, with runs that are not dry.
"""

import contextlib
import copy
import json
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.rows import OF_A_ROUND

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = """
import hashlib, json, pathlib, sys
plan = json.loads(pathlib.Path("plan.json").read_text())[" ".join(sys.argv[1:])]
digest = hashlib.sha256(pathlib.Path("salt").read_bytes())
for dep in map(pathlib.Path, plan["deps"]):
    for file in sorted(dep.rglob("*")) if dep.is_dir() else [dep]:
        if file.is_file():
            digest.update(file.read_bytes())
for out in map(pathlib.Path, plan["outs"]):
    folder = out.parts[0] == "models"
    (out if folder else out.parent).mkdir(parents=True, exist_ok=True)
    (out / "moat.json" if folder else out).write_text(f"{out} {digest.hexdigest()}")
"""
ONE = {"rounds": {"1": {"prev": "0"}}, "evaluated": {"1": {"prev": "0"}, "0": {"prev": ""}}}
TWO = {key: chain | {"2": {"prev": "1"}} for key, chain in ONE.items()}
EVALUATED = {"evaluate@0", "evaluate@1"}


def rounds(*names, key="1"):
    """The stages of these names in a round. One round is enough: all rounds are one template of dvc.yaml."""
    return {f"{name}@{key}" for name in names}


COLD_STARTS = {"cold_start@planner", "cold_start@grounder"}
UPDATES = rounds("align_planner", "train_grounder")
ACTED = {"check_gold"} | rounds("ground", "critique") | EVALUATED  # whatever runs actions with a corpus or a page
CRITICS = rounds("critique") | {"calibrate_critic"}
# The page quotes the settings, so `report` reads all of params.yaml: it is in every answer, and left out here.
CHANGES = {
    "seed": (
        1,
        {"prepare", "check_gold"} | COLD_STARTS | rounds("sample", "ground", "pairs", "mix") | CRITICS | UPDATES | EVALUATED,
    ),
    "mode": ("independent", UPDATES),
    "init_from": ("cold_start", UPDATES),
    "reference": ("cold_start", rounds("align_planner")),
    "data_window": ("all", rounds("mix")),
    "planning": ("iterative", {"prepare", "base_model"} | EVALUATED),
    "format": ("chat", COLD_STARTS | rounds("sample", "score", "ground") | UPDATES | EVALUATED),
    "max_length": (128, COLD_STARTS | rounds("score") | UPDATES | EVALUATED),
    "prepare.sources.stories.n_train": (610, {"prepare"}),
    "prepare.sources.stories_travel.n_eval": (151, {"prepare"}),
    "base_model.hidden_size": (32, {"base_model"}),
    "base_model.seed": (1, {"base_model"}),
    # a role's settings are also those of its further training under `mode: independent`
    "cold_start.planner.epochs": (3, {"cold_start@planner"} | rounds("align_planner")),
    "cold_start.grounder.learning_rate": (0.1, {"cold_start@grounder"} | rounds("train_grounder")),
    "lora.rank": (8, COLD_STARTS | UPDATES),
    "sample.k": (9, rounds("sample")),
    "sample.temperature": (0.9, rounds("sample") | EVALUATED),
    "sample.top_p": (0.95, rounds("sample") | EVALUATED),
    "sample.max_new_tokens": (65, rounds("sample") | EVALUATED),
    "limits.max_failed": (0.02, rounds("sample", "score", "ground") | CRITICS | EVALUATED | {"check_gold"}),
    "limits.max_unparsed": (0.2, CRITICS),
    "limits.min_distinct": (3, rounds("sample")),
    "limits.min_diversity": (0.2, rounds("sample")),
    "limits.min_length_ratio": (0.3, rounds("sample")),
    "score.include_end": (True, rounds("score") | EVALUATED),
    "pairs.score": ("nll", rounds("pairs")),
    "pairs.select": ("random", rounds("pairs")),
    "pairs.min_gap": (0.2, rounds("pairs") | {"summarize"}),
    "align.enabled": (False, rounds("align_planner")),
    "align.loss": ("sft_chosen", rounds("align_planner")),
    "align.beta": (0.1, rounds("align_planner")),
    "align.nll_weight": (0.0, rounds("align_planner")),
    "ground.temperature": (0.1, rounds("ground")),
    "ground.max_new_tokens": (65, rounds("ground")),
    "critic.kind": ("none", CRITICS),
    "critic.on_failure": ("drop", CRITICS),
    "tools.qa.retriever": ("dense", {"index"} | ACTED),
    "tools.qa.passages": (4, ACTED),
    "tools.web.ranker": ("cross_encoder", ACTED),
    "mix.dedup": (False, rounds("mix")),
    "mix.initial_ratio": (0.5, rounds("mix")),
    "train_grounder.enabled": (False, rounds("train_grounder")),
    "train_grounder.epochs": (2, rounds("train_grounder")),
    "independent.factor": (2, UPDATES),
    "evaluate.temperature": (0.1, EVALUATED),
    "evaluate.samples": (0, EVALUATED),
    "evaluate.max_turns": (9, EVALUATED),
}
FILES = {
    "moat/pairs.py": rounds("pairs") | {"summarize", "report"},
    "moat/critic.py": CRITICS,
    "moat/worlds/stories.py": {"prepare", "base_model", "calibrate_critic", "summarize", "report"},
    "moat/report.html.j2": {"report"},
    "moat/schemas/dynamics.py": rounds("dynamics") | {"summarize", "report"},
    "moat/status.py": set(),
}


def json_first(parse):
    """DVC reads params.yaml anew for every stage, and dvc.lock several times: that is most of a dry run's time.

    So both are JSON here, which is YAML, and what is no JSON (dvc.yaml) is parsed once for an equal text.
    """
    seen = {}

    def parsed(text, path, typ="safe"):
        try:
            return json.loads(text)
        except ValueError:
            if text not in seen:
                seen[text] = pickle.dumps(parse(text, path, "safe"))
            return pickle.loads(seen[text])

    return parsed


class Project:
    """A copy of the pipeline with stand-ins for its commands."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for folder in ("moat", "stages"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copyfile(ROOT / name, place / name)
        (place / "data" / "sources").mkdir(parents=True)
        (place / "moat" / "launch.py").write_text(STAND_IN)
        (place / "salt").write_text("")
        self.params = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8")) | ONE
        self.write()

    def write(self, **changes) -> None:
        """Write params.yaml with other values at some keys."""
        params = copy.deepcopy(self.params)
        for key, value in changes.items():
            where, parts = params, key.split(".")
            for part in parts[:-1]:
                where = where[part]
            assert parts[-1] in where, key
            assert where[parts[-1]] != value, f"{key} is {value} already"
            where[parts[-1]] = value
        (self.place / "params.yaml").write_text(json.dumps(params))

    def repro(self, dry: bool) -> set[str]:
        """Names of the stages that a repro runs, or would run."""
        from dvc.repo import Repo

        with contextlib.chdir(self.place), Repo(str(self.place)) as repo:
            if not dry:
                self.plan(repo.index.stages)
            return {stage.addressing for stage in repo.reproduce(dry=dry)}

    def plan(self, stages) -> None:
        """Tell the stand-in what each stage reads and writes."""
        plan = {}
        for stage in stages:
            reads = [str(dep) for dep in stage.deps if str(dep).startswith(("data", "models", "metrics"))]
            assert stage.cmd.startswith("exec python -m moat.launch ")
            arguments = stage.cmd.removeprefix("exec python -m moat.launch ")
            plan[arguments] = {"deps": reads, "outs": [str(out) for out in stage.outs]}
        (self.place / "plan.json").write_text(json.dumps(plan))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Project]:
    """A project whose stages are all up to date."""
    pytest.importorskip("dvc")
    import dvc.utils.serialize._yaml as loader
    import dvc.utils.strictyaml as strict
    from dvc.repo import Repo

    made = Project(tmp_path_factory.mktemp("reruns"))
    with pytest.MonkeyPatch.context() as patch:
        for module in (loader, strict):
            patch.setattr(module, "parse_yaml", json_first(module.parse_yaml))
        patch.setattr(loader, "_dump", json.dump)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(made.place))
        Repo.init(str(made.place), no_scm=True).close()
        ran = made.repro(dry=False)
        assert {"prepare", "evaluate@0", "dynamics@1", "report"} < ran
        yield made


@pytest.fixture
def settled(project) -> Iterator[Project]:
    """The project, for tests that run nothing; afterwards it has the settings again that its stages ran with."""
    yield project
    project.write()


@pytest.fixture
def own(project, tmp_path) -> Project:
    """A copy of the project, for a test that runs stages."""
    made = copy.copy(project)
    made.place = tmp_path / "own"
    shutil.copytree(project.place, made.place, symlinks=True)
    return made


# --- dry --------------------------------------------------------------------------------------------------------------


def test_nothing_runs_when_nothing_changed(settled):
    """The table below would mean nothing otherwise."""
    assert settled.repro(dry=True) == set()


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_reruns_the_stages_that_read_it(settled, key):
    """These and no other."""
    value, expected = CHANGES[key]
    settled.write(**{key: value})
    assert settled.repro(dry=True) - {"report"} == expected


def test_every_setting_has_its_line():
    """A section of params.yaml that no line of the table changes would go untested; rounds come below."""
    tested = {key.split(".")[0] for key in CHANGES} | {"rounds", "evaluated"}
    assert tested == set(YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text(encoding="utf-8")))


@pytest.mark.trap(51)
@pytest.mark.parametrize("name", FILES)
def test_a_file_reruns_the_stages_that_import_it(settled, name):
    """A change of the library is never missed, and reruns nothing that does not use it."""
    path = settled.place / name
    before = path.read_bytes()
    try:
        path.write_bytes(before + b"\n# changed\n")
        assert settled.repro(dry=True) == FILES[name]
    finally:
        path.write_bytes(before)


def test_the_machine_reruns_nothing(settled):
    """machine.yaml says where a run happens: not even the page depends on it."""
    path = settled.place / "machine.yaml"
    path.write_text("threads: 2\ngenerate_batch: 8\n")
    try:
        assert settled.repro(dry=True) == set()
    finally:
        path.unlink()


# --- not dry: what follows --------------------------------------------------------------------------------------------


def test_equal_outputs_stop_the_rerun(own):
    """Verdicts that come out the same: the critics run, and nothing after them (but the page, which names the setting)."""
    own.write(**{"critic.on_failure": "drop"})
    assert own.repro(dry=False) == CRITICS | {"report"}


def test_a_base_that_comes_out_the_same_reruns_nothing(own):
    """Every stage that asks a round's model depends on the base, and none of them runs for a new note on it."""
    own.write(**{"base_model.seed": 1})
    assert own.repro(dry=False) == {"base_model", "report"}


def test_changed_outputs_rerun_what_reads_them_and_nothing_before(own):
    """Other verdicts: the grounder's branch of the round runs, and neither its candidates nor the planner's branch."""
    own.write(**{"critic.kind": "none"})
    (own.place / "salt").write_text("other verdicts")
    after = rounds("mix", "train_grounder", "dynamics", "evaluate")
    assert own.repro(dry=False) == CRITICS | after | {"summarize", "report"}


@pytest.mark.trap(49, 50)
def test_a_round_comes_and_goes(own):
    """A second round runs its own stages, the figures and the page.

    Taken out again it leaves its tables behind: the figures and the page run, no older round does, and then nothing.
    """
    own.write(**TWO)
    assert own.repro(dry=False) == rounds(*OF_A_ROUND, key="2") | {"summarize", "report"}
    own.write()
    assert own.repro(dry=False) == {"summarize", "report"}
    assert (own.place / "data/rounds/2/pairs.parquet").is_file()
    assert own.repro(dry=True) == set()
