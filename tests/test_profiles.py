"""The profiles, as far as they can be tried without their weights: settings, pipeline, prompts, memory, a small model."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moat import layout, machine, params, planning, profiles
from moat.architectures import KNOWN
from moat.machine import Machine
from moat.stage import Stage
from moat.tokens import Renderer
from tests.rows import OF_A_ROUND

ROOT = Path(__file__).resolve().parent.parent
NAMES = profiles.names(ROOT)
PAPERS = {
    "paper_llama2_7b": ("Llama-2-7b", "llama"),
    "paper_mistral_7b": ("Mistral-7B", "llama"),  # Mistral's tokenizer is of Llama's kind
    "paper_qwen25_14b": ("Qwen2.5-14B", "qwen"),
}
MACHINES = sorted((ROOT / "machines").glob("*.yaml"))


def profile(name):
    return params.load(ROOT / "profiles" / f"{name}.yaml")


# --- settings ---------------------------------------------------------------------------------------------------------


def test_the_profiles_are_those_that_the_readme_lists():
    """Each by name in its table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| profile | what it is | needs |") :].split("\n\n")[0]
    listed = {name.strip() for line in table.splitlines()[2:] for name in line.split("|")[1].split(",")}
    assert listed == set(NAMES)


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_models_are_pinned_by_commit(name):
    """Base model, judge and reader: forty hexadecimal digits, and not a branch, which moves."""
    found = profile(name)
    for revision in (found.base_model.revision, found.critic.revision, found.tools.qa.reader_revision):
        assert re.fullmatch("[0-9a-f]{40}", revision)
    revisions = {profile(other).base_model.revision for other in PAPERS}
    assert len(revisions) == len(PAPERS)


PLACEHOLDERS = """
from pathlib import Path
from dvc.repo import Repo
for stage in Repo().index.stages:
    for out in stage.outs:
        path = Path(out.fs_path)
        path = path if path.suffix else path / "moat.json"  # a model's folder
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
"""


@pytest.fixture(scope="module")
def dvc_under(tmp_path_factory):
    """Runs dvc under a profile's settings. A dry run needs every output: in this checkout they are there as empty files."""
    place = tmp_path_factory.mktemp("dry")
    for folder in ("moat", "stages", "profiles"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "data/sources").mkdir(parents=True)
    (place / "data/sources/README.md").touch()
    for file in ("dvc.yaml", "params.yaml", ".gitignore", ".dvcignore"):
        shutil.copyfile(ROOT / file, place / file)

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-P", *command],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(place)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "dvc", "init", "-q", "--no-scm")
    run("-c", PLACEHOLDERS)

    def under(name, *arguments):
        profiles.use(place, name, place / "params.yaml")
        return run("-m", "dvc", *arguments)

    return under


@pytest.mark.parametrize("name", NAMES)
def test_dvc_reads_the_pipeline_of_every_profile(name, dvc_under):
    """`dvc repro --dry` names every stage of every round."""
    ran = set(re.findall(r"Running stage '(.+)'", dvc_under(name, "repro", "--dry")))
    rounds = profile(name).rounds
    once = {"prepare", "index", "check_gold", "base_model", "cold_start@planner", "cold_start@grounder", "evaluate@0"}
    once |= {"calibrate_critic", "summarize", "report"}
    assert ran == once | {f"{stage}@{key}" for stage in OF_A_ROUND for key in rounds}


# --- prompts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPERS)
def test_prompts_with_a_tokenizer_of_the_models_kind(name, vocabulary):
    """One BOS where the kind has one and none where not; the plain-text turns; the answer's end token."""
    tokenizer = vocabulary(PAPERS[name][1])
    renderer = Renderer(tokenizer, profile(name).format)
    made = renderer.planner_example("Ada has 4 pens and buys 5. How many?", "Subgoal 1: Add 5 to 4")
    ids = [*made.prompt, *made.completion]
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token is not None)
    assert ids.count(tokenizer.eos_token_id) == 1 == (ids[-1] == tokenizer.eos_token_id)
    text = tokenizer.decode(made.prompt, skip_special_tokens=True).strip()
    assert text.startswith("<|user|>\n")
    assert text.endswith("<|assistant|>")


# --- the plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_profiles_fit_the_machines_that_are_given_as_examples(name, path, tmp_path):
    """Every training and every engine, on each device; and the batches of all stages can be made."""
    made = planning.plan(profile(name), machine.read(path), tmp_path, name)
    assert made.fits is True, [(use.what, use.memory) for use in made.uses if not use.fits]
    assert made.warnings == []
    assert made.load.candidates == 27_000


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_machine_example_asks_the_papers_judge_at_a_server(path):
    """And says so in its head, with how to plan by it."""
    here = machine.read(path)
    assert here.role("critic").engine == "openai"
    text = path.read_text(encoding="utf-8")
    assert f"--machine machines/{path.name}" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_can_be_planned_without_anything_made(name, tmp_path):
    made = planning.plan(profile(name), Machine(device="cpu"), tmp_path, name)
    assert json.loads(json.dumps(planning.to_json(made)))["profile"] == name


# --- a small model of the kind, through the whole pipeline --------------------------------------------------------------


def small_config(name, tokenizer):
    """The architecture's configuration, of the same type and shape of attention, with two layers of 32 numbers."""
    known = KNOWN[PAPERS[name][0]]
    grouped = known["num_attention_heads"] // known["num_key_value_heads"]
    return known | {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": max(1, 4 // grouped),
        "intermediate_size": 64,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def small(own, folder):
    """The profile with few of tiny's stories, one round, short answers, `folder` as the base model, the executor as critic.

    A judge that can judge is no small model.
    """
    raw = own.model_dump(exclude_unset=True)
    stories = profile("tiny").prepare.model_dump(exclude_unset=True)["sources"]
    stories["stories"] |= {"n_train": 4, "n_demos": 48, "n_eval": 3, "steps": [2], "distractors": [1.0]}
    stories["stories_travel"] |= {"n_eval": 2}
    raw["prepare"]["sources"] = stories
    raw["rounds"] = {"1": {"prev": "0"}}
    raw["evaluated"] = {"1": {"prev": "0"}, "0": {"prev": ""}}
    raw["base_model"] |= {"name": str(folder), "revision": "small"}
    for section in (*raw["cold_start"].values(), raw["train_grounder"], raw["align"]):
        section |= {"batch_size": 4, "learning_rate": 0.01}
    raw["sample"] |= {"k": 8, "max_new_tokens": 64}
    raw["ground"] |= {"max_new_tokens": 8}
    raw["evaluate"] |= {"max_new_tokens": 8, "samples": 1}
    raw["critic"] |= {"kind": "executor"}
    raw["pairs"] |= {"min_gap": 0.0}
    raw["limits"] |= {"min_diversity": 0.0, "min_length_ratio": 0.0}
    return params.check(raw, params.Params, Path("small"))


STAGES = (
    ("prepare", {}),
    ("index", {}),
    ("check_gold", {}),
    ("base_model", {}),
    ("cold_start", {"role": "planner"}),
    ("cold_start", {"role": "grounder"}),
    ("calibrate_critic", {}),
    ("evaluate", {"round": "0"}),
    ("sample", {"round": "1", "prev": "0"}),
    ("score", {"round": "1", "prev": "0"}),
    ("ground", {"round": "1", "prev": "0"}),
    ("pairs", {"round": "1"}),
    ("align_planner", {"round": "1", "prev": "0"}),
    ("critique", {"round": "1"}),
    ("mix", {"round": "1", "prev": "0"}),
    ("train_grounder", {"round": "1", "prev": "0"}),
    ("dynamics", {"round": "1"}),
    ("evaluate", {"round": "1"}),
    ("summarize", {}),
    ("report", {}),
)


@pytest.mark.parametrize("name", PAPERS)
def test_a_small_model_of_the_architecture_goes_through_the_whole_pipeline(name, tmp_path, vocabulary, stage_module):
    """Every stage of a round, with the profile's kinds: a pretrained model, its own tokenizer, plain DPO.

    What comes out is of the same architecture; both models were trained on what the planner wrote; the report is there.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = vocabulary(PAPERS[name][1])
    model = tmp_path / "kind"
    torch.manual_seed(0)
    config = AutoConfig.for_model(**small_config(name, tokenizer))
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    settings = small(profile(name), model)
    (tmp_path / "params.yaml").write_text("", encoding="utf-8")
    with contextlib.chdir(tmp_path):
        for stage, arguments in STAGES:
            stage_module(stage).run(Stage(stage, settings, Machine(device="cpu"), tmp_path, arguments), **arguments)
        made = json.loads((layout.model("planner", "1") / "config.json").read_text(encoding="utf-8"))
        assert (made["model_type"], made["num_hidden_layers"]) == (config.model_type, 2)
        for role in ("planner", "grounder"):
            assert json.loads(layout.card(role, "1").read_text(encoding="utf-8"))["updates"] >= 1
        figures = json.loads(layout.METRICS.read_text(encoding="utf-8"))
        assert figures["final"]["n"] == 5
        assert layout.REPORT.stat().st_size > 1000
