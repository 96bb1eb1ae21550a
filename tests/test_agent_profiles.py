"""Agent-R's profiles, as far as they can be tried without their weights: agent_r/profiles."""

import re
import shutil
import subprocess
import sys

import pytest

from moat import profiles
from moat.agent_r.params import AgentParams
from moat.params import load_as, parse
from moat.reporting import deviations

PAPER = "paper_llama31_8b"


@pytest.fixture
def folder(root, tmp_path):
    """A project with the second pipeline's settings."""
    shutil.copytree(root / "agent_r/profiles", tmp_path / "agent_r/profiles")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copyfile(root / "agent_r" / name, tmp_path / "agent_r" / name)
    (tmp_path / "moat").mkdir()
    return tmp_path / "agent_r"


def test_tiny_is_params_yaml(root):
    """Values, and the comment of each line."""
    params, tiny = ((root / "agent_r" / name).read_text(encoding="utf-8") for name in ("params.yaml", "profiles/tiny.yaml"))
    assert parse(params, root) == parse(tiny, root)
    lines = [text[text.index("\nseed:") :].splitlines() for text in (params, tiny)]
    assert lines[0] == lines[1]


def test_another_profile_and_back_is_the_same_file(folder):
    path = folder / "params.yaml"
    before = path.read_bytes()
    assert profiles.use(folder, PAPER, path)
    assert load_as(path, AgentParams).max_length == 8196
    assert profiles.use(folder, "tiny", path)
    assert path.read_bytes() == before


def test_the_papers_values(root):
    """Of reference.md: thresholds, epochs, eta, judge, UCT, turns, lengths, test tasks; and what stands for the rest."""
    paper = load_as(root / f"agent_r/profiles/{PAPER}.yaml", AgentParams)
    rounds = [(one.alpha, one.epochs) for one in paper.rounds.values()]
    assert rounds == [(0.5, 3), (0.7, 1), (1.0, 1)]
    assert (paper.pairs.beta, paper.pairs.beta_rule, paper.mix.eta, paper.search.c) == (0.2, "gap", 0.2, 0.25)
    assert (paper.search.n, paper.search.depth, paper.evaluate.max_turns, paper.recovery.max_turns) == (4, 20, 100, 50)
    assert (paper.judge.kind, paper.splice.replay, paper.cold_start.enabled) == ("actor", "off", False)
    tests = {name: world.n_eval for name, world in paper.environments.items()}
    assert tests == {"webshop": 200, "scienceworld": 200, "textcraft": 100}
    assert set(paper.train_on) == set(tests)
    assert paper.train.learning_rate == 2e-5
    for revision in (paper.base_model.revision, paper.mix.general.revision):
        assert re.fullmatch("[0-9a-f]{40}", revision)


def test_tiny_marks_where_it_leaves_the_paper(root):
    """Every value of tiny that is another than the paper's profile's is marked, or the paper does not say."""
    tiny, paper = (load_as(root / f"agent_r/profiles/{name}.yaml", AgentParams) for name in ("tiny", PAPER))
    marked = {one.key for one in deviations((root / "agent_r/params.yaml").read_text(encoding="utf-8"))}
    other = profiles.differences(tiny.model_dump(mode="json"), paper.model_dump(mode="json"))
    unsaid = (
        "environments.",
        "base_model.",
        "cold_start.",
        "search.",
        "recovery.",
        "mix.max_good",
        "mix.general.",
        "train_on",
    )
    left = {key for key in other if not key.startswith(unsaid)} - {"train.warmup_ratio"}
    assert left <= marked | {"evaluate.max_new_tokens", "judge.max_new_tokens"}, left - marked


@pytest.mark.parametrize("name", ["tiny", PAPER])
def test_dvc_reads_the_pipeline_of_every_profile(folder, name):
    """Each resolves: a search for every round, an evaluation for round 0 too."""
    shutil.copyfile(folder / "profiles" / f"{name}.yaml", folder / "params.yaml")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=folder.parent, check=True)
    told = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--name-only", "agent_r/dvc.yaml"],
        cwd=folder.parent, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    found = {line.rpartition(":")[2] for line in told}
    assert {"search@1", "search@3", "evaluate@0", "evaluate@3", "report"} <= found
