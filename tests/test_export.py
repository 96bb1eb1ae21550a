"""`moat export`: a folder that stands alone, for transformers and for a server."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from moat import adapters, layout, models
from moat.cli import app
from moat.export import export
from moat.machine import Machine
from moat.params import Lora
from moat.provenance import content_hash
from moat.publish import DiskFullError

BASE, PLANNER, GROUNDER = layout.BASE_MODEL, layout.model("planner", "2"), layout.model("grounder", "1")
IDS = torch.tensor([[1, 5, 9, 30, 7]])


@pytest.fixture
def place(root, tmp_path, make_model, tokenizer, monkeypatch):
    """A project with a base, an adapter (the planner's of round 2, the last) and a whole model (the grounder's, round 1)."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copyfile(root / name, name)
    tokenizer.save_pretrained("tokenizer")
    models.save(make_model(), BASE, {"stage": "base_model"}, project / "tokenizer")
    adapted = adapters.fresh(make_model(), Lora(rank=4, alpha=8, dropout=0.0), 3)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(len(name)))
    models.save(adapted, PLANNER, {"stage": "align_planner", "base": content_hash(BASE, "moat.json")})
    models.save(make_model(5), GROUNDER, {"stage": "train_grounder"})
    return project


def moat(*arguments):
    return CliRunner().invoke(app, ["export", *arguments])


def test_an_adapter_leaves_as_a_whole_model(place, make_model, tokenizer):
    """transformers alone loads it: W + (alpha / rank) B A, the base's other weights, its tokenizer, and nothing else."""
    done = moat("planner", "--out", "../out")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("models/planner/2 (adapter) → ")
    out = place.parent / "out"
    assert {path.name for path in out.iterdir()} == {path.name for path in BASE.iterdir()}
    assert str(place) not in (out / "config.json").read_text()
    made, stored = (
        AutoModelForCausalLM.from_pretrained(out),
        adapters.load(models.load(BASE, Machine(device="cpu")), PLANNER),
    )
    with torch.no_grad():
        expected, found, base = (model(IDS).logits for model in (stored, made, make_model()))
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(found, base, atol=1e-1)
    assert AutoTokenizer.from_pretrained(out)("Add 5 to 4").input_ids == tokenizer("Add 5 to 4").input_ids


def test_a_whole_model_leaves_as_it_is(place):
    assert moat("grounder", "1", "--out", "out").exit_code == 0
    assert content_hash(place / "out", "moat.json") == content_hash(GROUNDER, "moat.json")


def test_an_export_says_what_it_is(place):
    """By its identity, so that a server of it is known to serve this round's model."""
    for role, key, source in (("planner", "2", PLANNER), ("grounder", "1", GROUNDER)):
        export(role, key, place.parent / role)
        assert adapters.exported_from(place.parent / role) == adapters.identity(source, content_hash)
        assert json.loads((place.parent / role / "moat.json").read_text())["model"] == source.as_posix()


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("there", "there is there already"),
        ("file", "file is there already"),
        ("link", "link is there already"),
        ("models/planner/9", "among DVC's outputs"),
        ("data/x", "among DVC's outputs"),
    ],
)
def test_a_place_that_would_lose_something_is_refused(place, out, said):
    """A folder, even an empty one, a file, a link that leads nowhere, what DVC deletes."""
    (place / "there").mkdir()
    (place / "file").touch()
    (place / "link").symlink_to("nowhere")
    done = moat("planner", "--out", out)
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (place / "models/planner/9").exists()


def test_what_is_not_there_is_said(place):
    """A model that was not made, a base that is gone, a round and a role that do not exist."""
    assert "no model in models/planner/1" in moat("planner", "1", "--out", "out").stderr
    assert "no round '7'" in moat("planner", "7", "--out", "out").stderr
    assert "no role 'critic'" in moat("critic", "--out", "out").stderr
    models.save(models.load(GROUNDER, Machine(device="cpu")), BASE, {}, place / "tokenizer")
    assert "models/planner/2 is an adapter of another base" in moat("planner", "--out", "out").stderr
    assert not (place / "out").exists()


@pytest.mark.trap(60)
def test_a_full_disk_leaves_nothing(place, monkeypatch):
    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DiskFullError):
        export("planner", "2", place / "out")
    assert not [path for path in place.iterdir() if "out" in path.name]
