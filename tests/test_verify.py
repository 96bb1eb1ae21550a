"""`moat verify`: a clean checkout gives no finding, and every damage one that names it."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from moat.checkout import Level
from moat.checks.lock import md5
from moat.cli import app
from moat.params import ParamsError, yaml
from moat.verify import CONTENTS, verify
from tests.conftest import ROOT
from tests.damage import KEPT, R1, TABLES, Damage, cell, lock, rewrite


@pytest.fixture
def place(clean_checkout, tmp_path, monkeypatch):
    """A copy of the clean checkout, which is also the current folder."""
    shutil.copytree(clean_checkout, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def findings(place, level=Level.FAULT):
    return [(finding.path, finding.what) for finding in verify(place).found(level)]


def found(place, path, said, level=Level.FAULT):
    return any(where == path and said in what for where, what in findings(place, level))


# --- nothing to find --------------------------------------------------------------------------------------------------


def test_a_clean_checkout_has_no_finding_and_every_check_but_the_locks_ran(clean_checkout):
    report = verify(clean_checkout)
    assert [finding for result in report.results for finding in result.findings] == []
    assert [result.title for result in report.results if not result.ran] == [
        "Every output that is there has the size and md5 that dvc.lock records"
    ]
    assert report.missing == []


def test_the_checkout_holds_every_kind_of_row(clean_checkout):
    """Else the tests below prove little: dropped and kept pairs, every verdict and origin, cut and empty plans."""
    table = {
        name: pl.read_parquet(clean_checkout / f"data/rounds/1/{name}.parquet") for name in ("pairs", "critiques", "sft")
    }
    assert {None, "gap below min_gap"} <= set(table["pairs"]["dropped"])
    assert set(table["critiques"]["verdict"]) == {"accept", "correct"}
    assert set(table["sft"]["origin"]) == {"accepted", "corrected", "initial"}
    dropped = pl.read_parquet(clean_checkout / "data/rounds/1/subgoals.parquet")["dropped"]
    assert set(dropped) == {None, "empty", "length"}


@pytest.mark.parametrize(
    "changes",
    [
        {"align.enabled": False},
        {"train_grounder.enabled": False},
        {"align.enabled": False, "train_grounder.enabled": False, "init_from": "cold_start"},
        {"mode": "independent", "independent.factor": 2},
        {"align.loss": "sft_chosen"},
        {"critic.kind": "none"},
        {"critic.on_failure": "drop"},
        {"pairs.select": "random"},
        {"pairs.score": "executed"},
        {"pairs.score": "nll"},
        {"pairs.min_gap": 100.0},
        {"mix.dedup": False},
        {"mix.initial_ratio": 0.0},
        {"mix.initial_ratio": 2.5},
        {"data_window": "all"},
        {"score.include_end": True},
        {"seed": 3},
        {"planning": "iterative", "max_length": 512, "mode": "independent", "data_window": "all", "pairs.score": "executed"},
    ],
    ids=str,
)
def test_no_switch_gives_a_false_alarm(make_checkout, tmp_path, changes):
    make_checkout(tmp_path, changes)
    report = verify(tmp_path)
    assert [finding for result in report.results for finding in result.findings] == []


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", TABLES, ids=lambda damage: damage.name)
def test_a_damaged_table_is_found_and_named(place, damage):
    damage.do()
    assert found(place, damage.at or damage.path, damage.said), findings(place)


@pytest.fixture(scope="module")
def in_turns(make_checkout, tmp_path_factory):
    """A checkout of iterative planning. Shared: copy it before changing anything."""
    place = tmp_path_factory.mktemp("turns")
    make_checkout(place, {"planning": "iterative", "max_length": 512})
    return place


def test_a_checkout_in_turns_holds_every_kind_of_row(in_turns):
    """Else its silence proves little: turns to train on, stops, played turns, episodes that end in every way."""
    tasks = pl.read_parquet(in_turns / "data/tasks/train.parquet")
    assert {0, 1} <= set(tasks["turn"])
    dropped = pl.read_parquet(in_turns / "data/rounds/1/subgoals.parquet")["dropped"]
    assert set(dropped) == {None, "empty", "length", "stop"}
    evals = pl.concat(pl.read_parquet(path) for path in (in_turns / "data/evals").glob("*.parquet"))
    assert {"reached", "not_reached", "turn_limit", "empty", "no_result", "unanswered"} <= set(evals["outcome"])
    assert set(evals["n_turns"]) >= {0, 1, 2}
    assert [finding for result in verify(in_turns).results for finding in result.findings] == []


def other_actions(turns):
    """The last turn's actions replaced."""
    return [*turns[:-1], turns[-1] | {"actions": "R1 = Calculator(0)"}]


IN_TURNS = (
    Damage(
        "result", "data/evals/1.parquet", cell("turns", other_actions, pl.col("success")), "not what the actions come to"
    ),
    Damage(
        "history",
        "data/tasks/train.parquet",
        cell("turns", lambda turns: [turns[0] | {"actions": "R1 = Calculator("}, *turns[1:]], pl.col("turn") > 0),
        "gold actions miss the gold answer",
    ),
    Damage("stop", f"{R1}/subgoals.parquet", cell("dropped", None, pl.col("dropped") == "stop"), "`stop` for none"),
    Damage("turn", "data/tasks/train.parquet", cell("turn", lambda turn: turn + 1), "task_id is not that of the content"),
)


@pytest.mark.parametrize("damage", IN_TURNS, ids=lambda damage: damage.name)
def test_a_damaged_table_of_turns_is_found_and_named(in_turns, tmp_path, monkeypatch, damage):
    shutil.copytree(in_turns, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    damage.do()
    assert found(tmp_path / "project", damage.path, damage.said), findings(tmp_path / "project")


def test_a_pair_below_the_gap_is_found(place):
    """A pair that was dropped for its gap, kept."""
    rewrite(place / "data/rounds/1/pairs.parquet", cell("dropped", None, pl.col("dropped") == "gap below min_gap"))
    assert found(place, "data/rounds/1/pairs.parquet", "a kept pair is below min_gap (0.1)")


def test_a_pair_that_was_dropped_without_need_is_found(place):
    rewrite(place / "data/rounds/1/pairs.parquet", cell("dropped", "gap below min_gap", KEPT))
    assert found(place, "data/rounds/1/pairs.parquet", "a pair of min_gap (0.1) was dropped")


def test_a_random_pair_of_equal_plans_is_found(make_checkout, tmp_path, monkeypatch):
    """The control may pair any two candidates, but not two equal ones."""
    make_checkout(tmp_path, {"pairs.select": "random"})
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data/rounds/1/pairs.parquet"
    rewrite(path, cell("chosen_k", pl.read_parquet(path).filter(KEPT)["rejected_k"][0], KEPT))
    assert found(tmp_path, "data/rounds/1/pairs.parquet", "chosen and rejected are one candidate")


def test_an_accepted_candidate_under_a_dropping_critic_is_found(make_checkout, tmp_path):
    """critic.on_failure drop corrects nothing."""
    make_checkout(tmp_path, {"critic.on_failure": "drop"})
    rewrite(tmp_path / "data/rounds/1/critiques.parquet", cell("verdict", "correct", pl.col("verdict") == "reject"))
    assert found(tmp_path, "data/rounds/1/critiques.parquet", "corrected, though critic.on_failure is drop")


def test_an_unparsed_verdict_in_the_training_set_is_found(place):
    """The verdict becomes unparsed; the row that was trained on stays."""
    rewrite(place / "data/rounds/1/critiques.parquet", cell("verdict", "unparsed", pl.col("verdict") == "accept"))
    assert found(place, "data/rounds/1/sft.parquet", "not as in the verdicts' rows")


def test_a_cut_answer_that_was_accepted_is_found(make_checkout, tmp_path):
    """Trap 20, under the critic that accepts everything else."""
    make_checkout(tmp_path, {"critic.kind": "none"})
    rewrite(tmp_path / "data/rounds/1/critiques.parquet", cell("verdict", "accept", pl.col("verdict") == "reject"))
    assert found(tmp_path, "data/rounds/1/critiques.parquet", "accepted, though the actions were cut")


def test_a_demonstration_drawn_thrice_before_others_is_found(place):
    path = place / "data/rounds/1/sft.parquet"
    rows = pl.read_parquet(path).filter(pl.col("origin") == "initial")
    often = rows["demo_id"][0]
    columns = {name: rows[name][0] for name in ("demo_id", "task_id", "text", "subgoals", "actions")}

    def change(frame):
        initial = pl.col("origin") == "initial"
        number = pl.int_range(pl.len()).over("origin").cast(pl.String)
        again = frame.with_columns(
            pl.when(initial).then(pl.format("initial/1/{}/{}", pl.lit(often), number)).otherwise("row_id").alias("row_id"),
            *(pl.when(initial).then(pl.lit(value)).otherwise(name).alias(name) for name, value in columns.items()),
        )
        return again.sort("row_id")

    rewrite(path, change)
    assert found(place, "data/rounds/1/sft.parquet", "drawn again before every other one was drawn")


def test_an_over_length_row_is_warned_of_and_the_count_of_moat_json_is_wrong(place):
    """Training would have dropped the row, so a model that says it learned it does not fit the table."""
    Damage("", "data/rounds/1/sft.parquet", cell("text", "kites " * 300), "").do()
    assert found(place, "data/rounds/1/sft.parquet", "longer than max_length (256): 1 row", Level.WARNING)
    assert found(place, "models/grounder/1", "moat.json says rows")


def test_an_empty_answer_in_the_training_set_is_warned_of(place):
    Damage("", "data/rounds/1/sft.parquet", cell("actions", " "), "").do()
    assert found(
        place, "data/rounds/1/sft.parquet", "an empty answer, from which nothing can be learned: 1 row", Level.WARNING
    )


# --- models -----------------------------------------------------------------------------------------------------------


def header_of(path):
    """(offset of the data, header) of a safetensors file, by its format."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return 8 + length, json.loads(data[8 : 8 + length])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_found(place, value):
    path = place / "models/planner/1/model.safetensors"
    start, _ = header_of(path)
    data = bytearray(path.read_bytes())
    data[start + 40 : start + 44] = np.float32(value).tobytes()
    path.write_bytes(data)
    assert found(place, "models/planner/1", "values that are no numbers")


@pytest.mark.parametrize(
    ("bits", "sound"), [(0x7F7F, True), (0x7F80, False), (0x7FC0, False), (0xFF80, False), (0x3F80, True)]
)
def test_bfloat16_weights_are_looked_at_too(place, bits, sound):
    """The largest number, infinity, NaN, minus infinity, one, as bits of bfloat16."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + np.array([0, bits], np.uint16).tobytes()
    (place / "models/base/model.safetensors").write_bytes(content)
    assert found(place, "models/base", "values that are no numbers") is not sound


@pytest.mark.parametrize("cut", [4, 60, -8])
def test_torn_weights_are_found(place, cut):
    path = place / "models/grounder/1/model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    assert found(place, "models/grounder/1", "model.safetensors is torn")


def test_a_missing_shard_is_named(place):
    folder = place / "models/grounder/1"
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors").rename(folder / shards[0])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    assert found(place, "models/grounder/1", f"weights are missing: {shards[1]}")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "moat.json", "model.safetensors"])
def test_a_missing_part_of_a_model_is_named(place, name):
    (place / "models/planner/1" / name).unlink()
    assert found(place, "models/planner/1", name)


@pytest.mark.trap(57)
def test_another_tokenizer_and_what_a_trainer_left_are_found(place):
    """One byte more in the tokenizer's file; training_args.bin."""
    with (place / "models/planner/1/tokenizer.json").open("a") as file:
        file.write("\n")
    (place / "models/grounder/1/training_args.bin").touch()
    assert found(place, "models/planner/1", "not the base model's: tokenizer.json")
    assert found(place, "models/grounder/1", "training_args.bin is the trainer's")


def card(place, model, **changes):
    path = place / model / "moat.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("models/grounder/1", {"rows": 7}, "moat.json says rows: 7"),
        ("models/planner/1", {"pairs": 99}, "moat.json says pairs: 99"),
        ("models/planner/0", {"rows": 39}, "moat.json says rows: 39, the tables and parameters say 40"),
        ("models/planner/1", {"updates": 50}, "moat.json says updates: 50"),
        ("models/planner/1", {"stage": "cold_start"}, "moat.json says stage: cold_start"),
        ("models/planner/1", {"log": [{"update": 1, "loss": float("nan")}]}, "a figure of update 1 is no number"),
        ("models/planner/0", {"log": [{"update": 1, "loss": 1.0}]}, "the log ends at update 1, of 6 updates"),
    ],
)
def test_a_card_that_does_not_fit_is_found(place, model, changes, said):
    """40 demonstrations in batches of 16, two epochs: 6 updates."""
    card(place, model, **changes)
    assert found(place, model, said), findings(place)


def test_a_model_that_should_have_stayed_and_changed_is_found(make_checkout, tmp_path):
    make_checkout(tmp_path, {"align.enabled": False})
    (tmp_path / "models/planner/1/config.json").write_text("{}")
    assert found(tmp_path, "models/planner/1", "it was not trained, and yet is not models/planner/0")


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted(make_checkout, tmp_path_factory):
    """The small checkout with adapters of rank 4. Shared: copy it before changing anything."""
    made = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        make_checkout(made, {"lora.rank": 4})
    return made


def test_a_clean_checkout_of_adapters_has_no_finding(adapted):
    assert (adapted / "models/planner/1/adapter_model.safetensors").is_file()
    assert findings(adapted) + findings(adapted, Level.WARNING) == []


def factor(change):
    """Damage one tensor of models/planner/1's adapter: the first A, which is [4, 16] on a [32, 16] or [16, 16] weight."""

    def do(place):
        from safetensors.numpy import load_file, save_file

        path = place / "models/planner/1/adapter_model.safetensors"
        weights = load_file(path)
        change(weights, next(name for name in sorted(weights) if "q_proj.lora_A" in name))
        save_file(weights, path)

    return do


def whole(place):
    shutil.rmtree(place / "models/planner/1")
    shutil.copytree(place / "models/base", place / "models/planner/1")


def rank(place):
    path = place / "models/planner/1/adapter_config.json"
    path.write_text(path.read_text().replace('"r": 4', '"r": 3'))


def cut_short(place):
    path = place / "models/planner/1/adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda place: card(place, "models/planner/1", base="0" * 64), "models/planner/1 is an adapter of another base"),
        (rank, "its rank is 3, and lora.rank is 4"),
        (whole, "it is no adapter, and lora.rank is 4"),
        (cut_short, "adapter_model.safetensors is torn"),
        (lambda place: (place / "models/planner/1/adapter_config.json").unlink(), "adapter_config.json is missing"),
        (
            lambda place: (place / "models/planner/1/adapter_model.safetensors").unlink(),
            "weights are missing: adapter_model",
        ),
        (factor(lambda w, a: w.pop(a)), "1 tensors are no factors of models/base's weights"),
        (factor(lambda w, a: w.update({a: w[a][:2]})), "2 tensors are no factors of models/base's weights"),
        (factor(lambda w, a: w.update({a: w[a][:, :8]})), "2 tensors are no factors of models/base's weights"),
        (factor(lambda w, a: w.update({a: w[a] * np.float32(np.nan)})), "values that are no numbers"),
    ],
)
def test_a_damaged_adapter_is_found(adapted, tmp_path, monkeypatch, damage, said):
    shutil.copytree(adapted, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    damage(tmp_path / "project")
    assert found(tmp_path / "project", "models/planner/1", said), findings(tmp_path / "project")


def test_adapters_where_all_weights_are_trained_are_found(adapted, tmp_path):
    """An edit of params.yaml alone is a warning's; an adapter whose own card says rank 0 is a fault."""
    shutil.copytree(adapted, tmp_path / "project")
    card(tmp_path / "project", "models/planner/1", params={"lora": {"rank": 0}})
    assert found(tmp_path / "project", "models/planner/1", "it is an adapter, and lora.rank is 0")


# --- warnings ---------------------------------------------------------------------------------------------------------


def test_two_engines_are_a_warning_and_no_fault(place):
    rewrite(place / "data/rounds/2/scores.parquet", lambda f: f, lambda said: said["facts"].update(dtype="bfloat16"))
    assert found(place, "data/rounds/2/scores.parquet", "made with dtype bfloat16 (the others: float32)", Level.WARNING)
    assert all("made from another" in what for _, what in findings(place))  # the pairs were, of course


def test_an_engine_for_one_stage_is_a_setting_and_for_one_round_a_warning(place):
    """vllm sampled both rounds' plans and hf did all else: as machine.yaml may say. Of one round alone: another run."""
    for round_key, expected in (("1", True), ("2", False)):
        table = place / f"data/rounds/{round_key}/subgoals.parquet"
        rewrite(table, lambda f: f, lambda said: said["facts"].update(engine="vllm"))
        told = [where for where, what in findings(place, Level.WARNING) if "made with engine" in what]
        assert bool(told) is expected


def test_a_round_that_params_lacks_is_a_warning(place):
    shutil.copytree(place / "data/rounds/1", place / "data/rounds/7")
    assert found(place, "data/rounds/7", "params.yaml has no round 7", Level.WARNING)
    assert findings(place) == []


def set_param(place, section, **values):
    parser = yaml()
    params = parser.load((place / "params.yaml").read_text())
    params[section] |= values
    with (place / "params.yaml").open("w") as file:
        parser.dump(params, file)


def test_an_edit_of_params_is_a_warning_as_the_table_says_what_it_was_made_with(place):
    """The gap was 0.1 when the pairs were made; by the 1000 of now every pair would be faulty."""
    set_param(place, "pairs", min_gap=1000.0)
    said = "made with pairs.min_gap 0.1 (params.yaml now says 1000.0)"
    assert found(place, "data/rounds/1/pairs.parquet", said, Level.WARNING)
    assert findings(place) == []
    rewrite(place / "data/rounds/1/pairs.parquet", lambda f: f, lambda said: said["facts"].pop("params"))
    assert found(place, "data/rounds/1/pairs.parquet", "a kept pair is below min_gap")


# --- what is not there ------------------------------------------------------------------------------------------------


def test_a_round_that_was_not_run_is_not_there_and_no_fault(place):
    shutil.rmtree(place / "data/rounds/2")
    for path in ("data/evals/2.parquet", "models/planner/2", "models/grounder/2"):
        shutil.rmtree(place / path) if (place / path).is_dir() else (place / path).unlink()
    report = verify(place)
    assert [finding for result in report.results for finding in result.findings] == []
    assert len(report.missing) == 8 + 1 + 2


@pytest.mark.parametrize("part", ["data", "models"])
def test_tables_alone_and_models_alone_can_be_verified(place, part):
    shutil.rmtree(place / part)
    assert findings(place) == []


def test_without_anything_the_remedy_is_said(place):
    shutil.rmtree(place / "data")
    shutil.rmtree(place / "models")
    with pytest.raises(FileNotFoundError, match=r"no table and no model in .*dvc repro.*dvc pull"):
        verify(place)


# --- dvc.lock ---------------------------------------------------------------------------------------------------------


PAIRS, SCORES = "data/rounds/1/pairs.parquet", "data/rounds/1/scores.parquet"


def test_the_hash_is_dvcs(place, tmp_path):
    """What the real `dvc add` writes for a model folder and for a table."""
    (place / "models/planner/1/deeper").mkdir()
    (place / "models/planner/1/deeper/ä b.txt").write_text("ü")
    run = [sys.executable, "-m", "dvc"]
    subprocess.run([*run, "init", "--no-scm", "-q"], check=True, cwd=place, timeout=300)
    for path in ("models/planner/1", PAIRS):
        subprocess.run([*run, "add", "-q", path], check=True, cwd=place, timeout=300)
        out = yaml().load((place / f"{path}.dvc").read_text())["outs"][0]
        assert md5(place / path) == out["md5"]


def test_a_file_that_is_not_the_recorded_one_is_found(place):
    lock(place, pairs=([], [PAIRS], {}), train=([], ["models/planner/1"], {}))
    assert findings(place) == []
    rewrite(place / PAIRS, lambda f: f, lambda said: said["facts"].update(more=1))
    path = place / "models/planner/1/generation_config.json"
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    assert found(place, PAIRS, "bytes, dvc.lock says")
    assert found(place, "models/planner/1", "other content than dvc.lock records")


def test_the_params_of_the_lock_are_those_a_table_was_made_with(place):
    set_param(place, "pairs", min_gap=1000.0)
    pairs = ([], [f"data/rounds/{key}/pairs.parquet" for key in "12"], {"pairs": {"min_gap": 0.1}})
    lock(place, pairs=pairs)
    said = "made with pairs.min_gap 0.1 (params.yaml now says 1000.0)"
    assert found(place, PAIRS, said, Level.WARNING)
    assert findings(place) == []


def test_a_table_made_from_another_one_than_the_recorded_is_found(place):
    """scores changed and was recorded anew; pairs were not made anew."""
    lock(place, score=([], [SCORES], {}), pairs=([SCORES], [PAIRS], {}))
    text = (place / "dvc.lock").read_text()
    before = md5(place / SCORES)
    (place / "dvc.lock").write_text(text.replace(before, "0" * 32, 1))
    assert found(place, PAIRS, f"made from another {SCORES} than the one that dvc.lock records")


def test_a_table_whose_recorded_input_changed_is_found(place):
    """`facts.inputs` holds the SHA-256 of what the stage read, by path; a path that is gone is another check's."""

    def made_from(digest):
        rewrite(place / PAIRS, lambda f: f, lambda said: said["facts"].update(inputs={SCORES: digest, "gone": "1"}))

    made_from(hashlib.sha256((place / SCORES).read_bytes()).hexdigest())
    assert not found(place, PAIRS, f"made from another {SCORES}")
    made_from("0" * 64)
    assert found(place, PAIRS, f"made from another {SCORES} than the one that is here")


def test_a_parent_that_is_gone_is_a_warning(place):
    lock(place, score=([], [SCORES], {}), pairs=([SCORES], [PAIRS], {}))
    (place / SCORES).unlink()
    assert found(place, SCORES, f"not there, though {PAIRS}, made from it, is", Level.WARNING)
    assert findings(place) == []


def test_outputs_of_removed_rounds_are_not_looked_for(place):
    lock(place, **{"pairs@7": ([], [PAIRS], {})})
    rewrite(place / PAIRS, lambda f: f, lambda said: said["facts"].update(more=1))
    assert {what for _, what in findings(place)} == {f"made from another {PAIRS} than the one that is here"}


@pytest.mark.parametrize("text", ["stages: [", "stages: {a: {outs: [{}]}}", "just words"])
def test_a_broken_lock_is_refused_with_the_remedy(place, text):
    (place / "dvc.lock").write_text(text)
    with pytest.raises(ParamsError, match=r"(?s)dvc\.lock is not a lock file of DVC .*git checkout"):
        verify(place)


# --- the command ------------------------------------------------------------------------------------------------------


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_command_lists_file_what_and_remedy_and_fails(place):
    assert moat("verify").exit_code == 0
    TABLES[1].do()
    done = moat("verify")
    assert done.exit_code == 1
    assert f"fault {TABLES[1].path}" in done.stdout
    assert "twice" in done.stdout
    assert "→" in done.stdout
    assert "2 faults" in done.stdout  # the damage, and a table made from the undamaged one


def test_json_has_the_same(place):
    TABLES[1].do()
    done = moat("verify", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["ok"]) == (1, False)
    assert said["findings"][0]["path"] == TABLES[1].path
    assert set(said["findings"][0]) == {"level", "path", "what", "remedy"}
    assert len(said["checks"]) == sum(len(checks) for _, checks in CONTENTS)


def test_a_wrong_params_file_is_refused_with_the_key(place):
    set_param(place, "sample", k=0)
    done = moat("verify")
    assert done.exit_code == 1
    assert "sample.k" in done.stderr


def test_outside_a_project_the_remedy_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = moat("verify")
    assert done.exit_code == 1
    assert "run from inside the project" in done.stderr


def test_tables_alone_need_no_torch(place):
    """Where there is no model there is no tokenizer, and neither torch nor transformers is imported."""
    shutil.rmtree(place / "models")
    code = (
        "import sys; from pathlib import Path; from moat.verify import verify; verify(Path('.'));"
        "assert not {'torch', 'transformers', 'dvc'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=place, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert pq.read_metadata(PAIRS).num_rows == 12
