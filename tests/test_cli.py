"""The command `moat`, with the libraries behind it: moat/cli.py, moat/status.py, moat/profiles.py."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moat import layout, params, profiles
from moat.cli import app
from moat.paper import own_row, rows_for
from moat.params import ParamsError
from moat.reporting import deviations
from moat.schemas.scores import SCORES
from moat.sources.registry import importer
from moat.status import ABSENT, StatusError, artifacts, dvc_status, reasons, recorded, rows_in, running

ROOT = Path(__file__).resolve().parent.parent
TINY = (ROOT / "profiles" / "tiny.yaml").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's folder with params.yaml, dvc.yaml and the profile tiny; also the current folder."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "tiny.yaml").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    profiles.use(tmp_path, "tiny", tmp_path / "params.yaml")  # nothing, unless params.yaml is being tuned
    return tmp_path


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1"})


def write_profile(project, name, *changes):
    """The profile tiny with texts replaced, each of which it must hold."""
    text = TINY
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (project / "profiles" / f"{name}.yaml").write_text(text, encoding="utf-8")


def between(text, start, end):
    return text[text.index(start) : text.index(end)]


PRETRAINED = (
    between(TINY, "\nbase_model:", "\ncold_start:"),
    "\nbase_model:\n  kind: pretrained\n  name: some/model\n  revision: 0a1b\n",
)
SHORTER = ('  "2": {prev: "1"}\n', "")
LONGER = ('  "2": {prev: "1"}\n', '  "2": {prev: "1"}\n  "3": {prev: "2"}\n')


def line(start):
    """The one line of the profile tiny that begins so, with its comment."""
    (found,) = [one for one in TINY.splitlines(keepends=True) if one.startswith(start)]
    return found


MORE_PLANS = (line("  k: "), "  k: 15\n")


# --- import ----------------------------------------------------------------------------------------------------------

ROW = {"question": "Add 1 to 1?", "answer": "One and one is <<1+1=2>>2\n#### 2"}


@pytest.fixture
def rows(tmp_path):
    """A file of one GSM8K row."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    return path


def test_import_does_not_replace_what_it_reads_or_a_folder(rows, tmp_path):
    """Publishing replaces its target; a file that was given to read, or a folder of other things, is no target."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept", encoding="utf-8")
    before = rows.read_bytes()
    for out, said in ((rows, "is the file that is read"), (tmp_path / "mine", "is a folder")):
        done = moat("import", "gsm8k", str(rows), "--out", str(out))
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.replace("│", " ").split())
    assert rows.read_bytes() == before
    assert (tmp_path / "mine" / "notes.txt").read_text(encoding="utf-8") == "kept"
    assert moat("import", "gsm8k", str(rows), "--out", str(tmp_path / "mine" / "t.parquet")).exit_code == 0


def test_import_of_nothing_is_an_error(rows, tmp_path):
    """The wrong format for a file: the reasons are listed, no empty table is left, and a script notices."""
    done = moat("import", "svamp", str(rows), "--out", str(tmp_path / "t.parquet"))
    assert (done.exit_code, "1 malformed row" in done.stdout) == (1, True)
    assert "no row was kept" in done.stderr
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize("setting", ["keep_all=maybe", "keep_all", "keep_all="])
def test_a_setting_that_is_no_truth_value_is_not_taken_for_false(rows, setting):
    done = moat("import", "gsm8k", str(rows), "--set", setting)
    assert done.exit_code == 2
    assert "keep_all" in done.stderr


# --- exec ------------------------------------------------------------------------------------------------------------


def test_exec_prints_every_result():
    done = moat("exec", "--domain", "maths", "R1 = Calculator(2 + 3); R2 = Calculator(R1 * 4)")
    assert (done.exit_code, done.stdout) == (0, "R1 = 5\nR2 = 20\n")


def test_exec_prints_what_ran_and_the_typed_failure():
    done = moat("exec", "R1 = Calculator(2 + 3); R2 = Calculator(R1 / 0)")
    assert (done.exit_code, done.stdout) == (1, "R1 = 5\n")
    assert "failed (no_result): R2" in done.stderr


def test_exec_names_the_domains_there_are():
    done = moat("exec", "--domain", "law", "R1 = Click(3)")
    assert done.exit_code == 2
    assert "maths" in done.stderr


# --- calibrate-critic ------------------------------------------------------------------------------------------------


def test_calibration_prints_the_agreement_and_writes_it_when_asked(project):
    """The confusion matrix with its sums; the file says the same. `none` accepts what is wrong."""
    done = moat("calibrate-critic", "--kind", "none", "--tasks", "3", "--out", "found.json")
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert done.exit_code == 0
    sums = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["all"]]
    right = sum(row["n"] for row in found["forms"] if row["right"])
    wrong = found["n"] - right
    assert sums == [
        ["all", "right", str(right), str(right), "0", "0", "0"],
        ["all", "wrong", str(wrong), str(wrong), "0", "0", "0"],
    ]
    assert f"critic none: agrees on {right / found['n']:.1%} of {found['n']} cases" in done.stdout


def test_a_kind_without_its_judge_is_told_what_to_set(project):
    done = moat("calibrate-critic", "--kind", "llm")
    assert done.exit_code == 1
    assert "critic: " in done.stderr
    assert "set judge to a model folder or a hub id" in done.stderr


def test_calibration_does_not_replace_a_folder(project):
    (project / "mine").mkdir()
    assert moat("calibrate-critic", "--tasks", "1", "--out", "mine").exit_code == 2
    assert (project / "mine").is_dir()


def test_calibration_does_not_write_what_the_stage_writes(project):
    """data/calibration.json is DVC's."""
    done = moat("calibrate-critic", "--tasks", "1", "--out", str(layout.CALIBRATION))
    assert (done.exit_code, layout.CALIBRATION.exists()) == (1, False)
    assert "dvc repro calibrate_critic" in done.stderr


# --- starting --------------------------------------------------------------------------------------------------------


def test_starting_imports_nothing_heavy():
    code = (
        "import sys, moat.cli; "
        "assert not {'torch', 'transformers', 'pyarrow', 'polars', 'dvc', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


COMMANDS = [
    ["status"],
    ["profile", "use"],
    ["profile", "list"],
    ["exec"],
    ["trace"],
    ["diff"],
    ["verify"],
    ["calibrate-critic"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_gives_an_example(command):
    done = moat(*command, "--help")
    assert done.exit_code == 0
    assert f"Example: moat {' '.join(command)}" in done.stdout


def test_outside_a_project_the_remedy_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = moat("profile", "list")
    assert done.exit_code == 1
    assert "run from inside the project" in done.stderr


# --- profiles --------------------------------------------------------------------------------------------------------


def test_tiny_has_the_values_of_params():
    assert profiles.plain(ROOT / "profiles" / "tiny.yaml") == profiles.plain(ROOT / "params.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_can_be_used(project, path):
    (project / "profiles" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    profiles.use(project, path.stem, project / "params.yaml")
    assert profiles.plain(project / "params.yaml") == profiles.plain(path)


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_tiny_after_any_profile_is_the_projects_own_file(project, path):
    """Values, comments and their columns: byte for byte."""
    (project / "profiles" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    before = (project / "params.yaml").read_bytes()
    profiles.use(project, path.stem, project / "params.yaml")
    profiles.use(project, "tiny", project / "params.yaml")
    assert (project / "params.yaml").read_bytes() == before


PAPERS = {"paper_llama2_7b": "Llama-2-7B", "paper_mistral_7b": "Mistral-7B-v0.2", "paper_qwen25_14b": "Qwen2.5-14B"}


@pytest.fixture(params=PAPERS)
def paper(request, project):
    """The name of a profile with the paper's settings, which params.yaml now has."""
    (project / "profiles" / f"{request.param}.yaml").write_bytes((ROOT / "profiles" / f"{request.param}.yaml").read_bytes())
    profiles.use(project, request.param, project / "params.yaml")
    return request.param


def test_the_papers_profiles_have_the_papers_settings(project, paper):
    """Values from arXiv 2509.09629; `drawn` are its tasks: (trained, training tasks, evaluation tasks where it says so)."""
    found = params.load(project / "params.yaml")
    assert (found.sample.k, found.sample.temperature, len(found.rounds), found.max_length) == (15, 1.0, 2, 1024)
    sft = (2, 2e-5, 128, "linear", 0.03)
    for one in (*found.cold_start.values(), found.train_grounder):
        assert (one.epochs, one.learning_rate, one.batch_size, one.schedule, one.warmup_ratio) == sft
    align = found.align
    assert (align.learning_rate, align.schedule, align.loss, align.nll_weight) == (4e-7, "cosine", "dpo", 0)
    assert (found.pairs.score, found.pairs.min_gap, found.pairs.select) == ("ppl", 0.1, "extremes")
    assert (found.critic.kind, found.critic.judge) == ("llm", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B")
    assert (found.mix.dedup, found.mix.initial_ratio) == (False, 1.0)
    drawn = {name: (source.trained, source.n_train, source.n_eval) for name, source in found.prepare.sources.items()}
    assert [drawn[name][:2] for name in ("gsm8k", "strategyqa", "mind2web")] == [(True, 1300), (True, 300), (True, 200)]
    held_out = ("svamp", "webshop", "hotpotqa")
    assert [drawn[name] for name in held_out] == [(False, 0, 1000), (False, 0, 500), (False, 0, 100)]
    assert sum(source.n_train for source in found.prepare.sources.values()) == 1800


def test_the_papers_profiles_stand_beside_its_results(project, paper):
    """Base model and sources carry the names under which the report finds the paper's figures."""
    found = params.load(project / "params.yaml")
    assert {row.base for row in rows_for(found.base_model.name)} == {PAPERS[paper]}
    scores = {name: 0.5 for name, source in found.prepare.sources.items() if source.n_eval}
    assert set(own_row("here", "", scores).values.values()) == {50.0}


def test_nothing_under_the_papers_settings_is_said_to_deviate(project, paper):
    """Tiny's comments of its deviations are gone with its values."""
    assert deviations((project / "params.yaml").read_text(encoding="utf-8")) == []


def test_the_sources_of_the_papers_profiles_can_be_read(project, paper):
    """Importers, the files that they take and their settings are there."""
    for source in params.load(project / "params.yaml").prepare.sources.values():
        for origin in (getattr(source, "train", None), getattr(source, "eval", None)):
            if origin is not None:
                found = importer(origin.importer)
                assert len(origin.files) == len(found.files)
                assert {name: type(value) for name, value in origin.settings.items()}.items() <= found.settings.items()


def test_a_profile_with_the_same_values_changes_no_byte(project):
    before = (project / "params.yaml").read_bytes()
    assert "already" in moat("profile", "use", "tiny").stdout
    assert (project / "params.yaml").read_bytes() == before


def test_a_profile_changes_values_and_nothing_else(project):
    write_profile(project, "wide", MORE_PLANS)
    before = (project / "params.yaml").read_text(encoding="utf-8")
    assert moat("profile", "use", "wide").exit_code == 0
    after = (project / "params.yaml").read_text(encoding="utf-8")
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert [line.split("#")[0].split() for line in changed] == [
        ["-", *MORE_PLANS[0].split("#")[0].split()],
        ["+", "k:", "15"],
    ]
    assert changed[1].endswith("plans per task. Paper: 15")
    profiles.use(project, "tiny", project / "params.yaml")
    assert (project / "params.yaml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("change", [SHORTER, LONGER], ids=["shorter", "longer"])
def test_rounds_are_replaced_and_the_merge_follows(project, change):
    write_profile(project, "other", change)
    before = (project / "params.yaml").read_text(encoding="utf-8")
    profiles.use(project, "other", project / "params.yaml")
    text = (project / "params.yaml").read_text(encoding="utf-8")
    assert "rounds: &rounds" in text
    assert "<<: *rounds" in text
    loaded = params.load(project / "params.yaml")
    assert set(loaded.evaluated) == {"0", *loaded.rounds}
    assert len(loaded.rounds) == (1 if change is SHORTER else 3)
    profiles.use(project, "tiny", project / "params.yaml")
    assert (project / "params.yaml").read_text(encoding="utf-8") == before


def test_a_base_model_is_replaced_as_a_whole_and_what_stands_below_it_stays(project):
    write_profile(project, "pretrained", PRETRAINED)
    profiles.use(project, "pretrained", project / "params.yaml")
    assert params.load(project / "params.yaml").base_model.name == "some/model"
    text = (project / "params.yaml").read_text(encoding="utf-8")
    assert "hidden_size" not in text
    assert "revision: 0a1b\n\ncold_start:                   # SFT of each role" in text


def test_a_comment_of_the_profile_replaces_that_of_the_key(project):
    write_profile(project, "wide", (MORE_PLANS[0], "  k: 15    # as the paper\n"))
    profiles.use(project, "wide", project / "params.yaml")
    text = (project / "params.yaml").read_text(encoding="utf-8")
    assert "# as the paper\n" in text
    assert "# plans per task. Paper" not in text


def test_every_unknown_and_missing_key_is_named(project):
    write_profile(project, "odd", (MORE_PLANS[0], "  many: 15\n"), (line("format: "), ""))
    before = (project / "params.yaml").read_bytes()
    done = moat("profile", "use", "odd")
    assert done.exit_code == 1
    for words in ("odd.yaml", "sample.many: unknown key", "sample.k: missing key", "format: missing key"):
        assert words in done.stderr
    assert (project / "params.yaml").read_bytes() == before


def test_a_value_out_of_range_is_refused_before_anything_is_written(project):
    write_profile(project, "odd", (MORE_PLANS[0], "  k: 0\n"))
    before = (project / "params.yaml").read_bytes()
    with pytest.raises(ParamsError, match=r"odd\.yaml has 1 fault.*\n.*sample\.k"):
        profiles.use(project, "odd", project / "params.yaml")
    assert (project / "params.yaml").read_bytes() == before


def test_an_unknown_profile_is_answered_with_those_there_are(project):
    done = moat("profile", "use", "huge")
    assert done.exit_code == 1
    assert "there are tiny" in done.stderr


def test_the_list_marks_what_params_has(project):
    write_profile(project, "wide", MORE_PLANS)
    lines = moat("profile", "list").stdout.splitlines()
    assert [line.split()[:2] for line in lines if "tiny" in line or "wide" in line] == [
        ["*", "tiny"],
        ["wide", "tiny:"],
    ]


def test_show_prints_a_profile_as_it_stands(project):
    assert moat("profile", "show", "tiny").stdout == TINY
    done = moat("profile", "show", "huge")
    assert done.exit_code == 1
    assert "there are tiny" in done.stderr


def test_show_says_which_profile_params_has_and_what_differs(project):
    write_profile(project, "wide", MORE_PLANS)
    assert moat("profile", "show").stdout == "params.yaml has the values of tiny\n"
    text = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "params.yaml").write_text(text.replace("  min_gap: 0.1 ", "  min_gap: 0.2 "), encoding="utf-8")
    said = moat("profile", "show").stdout
    assert "nearest to tiny" in said
    assert [line.split() for line in said.splitlines() if "min_gap" in line] == [["pairs.min_gap", "0.2", "0.1"]]


def test_diff_tells_the_keys_that_differ(project):
    write_profile(project, "wide", MORE_PLANS)
    done = moat("profile", "diff", "wide")  # against params.yaml
    assert done.exit_code == 1
    assert [line.split() for line in done.stdout.splitlines() if "sample" in line] == [["sample.k", "15", "8"]]
    assert json.loads(moat("profile", "diff", "tiny", "wide", "--json").stdout) == {"sample.k": [8, 15]}
    same = moat("profile", "diff", "tiny")
    assert (same.exit_code, same.stdout) == (0, "tiny and params.yaml have the same values\n")


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1}}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a.b": (1, 3), "a.c": (2, profiles.ABSENT)}),
        ({"a": 1}, {"a": True}, {"a": (1, True)}),  # as YAML, and to DVC, they are not the same
        ({"a": {}}, {"a": {"b": 1}}, {"a": ({}, profiles.ABSENT), "a.b": (profiles.ABSENT, 1)}),
        ({"rounds": {"1": 1}, "evaluated": {"1": 1}}, {"rounds": {}, "evaluated": {}}, None),
    ],
)
def test_leaves_are_compared_and_what_follows_is_left_out(one, other, found):
    made = profiles.differences(one, other)
    assert made == found if found is not None else not any(key.startswith("evaluated") for key in made)


# --- status ----------------------------------------------------------------------------------------------------------


def scores(n):
    return [{"task_id": f"t{i}", "k": 0, "nll": 0.5, "ppl": 1.6, "n_action_tokens": 9} for i in range(n)]


def test_artifacts_are_counted_and_absent_ones_marked(project):
    SCORES.write(layout.table("scores", "1"), scores(3), {})
    layout.table("pairs", "1").write_bytes(b"no table")
    (project / "models/planner/1").mkdir(parents=True)
    (project / "models/planner/1/model.safetensors").touch()
    (project / "models/grounder/1").mkdir(parents=True)
    (project / "models/grounder/0").mkdir()
    (project / "models/grounder/0/adapter_model.safetensors").touch()
    assert artifacts(project, "0")["grounder"] == "adapter"
    found = artifacts(project, "1")
    assert (found["scores"], found["pairs"], found["subgoals"]) == ("3", "unreadable", ABSENT)
    assert (found["planner"], found["grounder"], found["eval"]) == ("yes", "no weights", ABSENT)


def test_the_cold_start_has_no_tables_of_a_round(project):
    assert artifacts(project, "0")["subgoals"] == ""
    assert artifacts(project, "0")["planner"] == ABSENT


def test_large_counts_are_grouped(tmp_path):
    SCORES.write(tmp_path / "scores.parquet", scores(1200), {})
    assert rows_in(tmp_path / "scores.parquet") == "1,200"


def test_without_dvc_the_table_is_shown_and_the_remedy_said(project):
    done = moat("status")
    assert done.exit_code == 1
    assert "round 2" in done.stdout
    assert "dvc init" in done.stderr


def test_reasons_are_words():
    changes = [
        {"changed deps": {"a.py": "modified", "b.py": "deleted", "params.yaml": {"pairs.min_gap": "modified"}}},
        {"changed outs": {"data/x.parquet": "deleted"}},
        "changed command",
    ]
    assert reasons(changes, has_run=True) == (
        "changed: a.py; missing: b.py; parameter changed: pairs.min_gap; output missing: data/x.parquet; its command changed"
    )
    assert reasons(changes, has_run=False) == "it has not run yet"


def test_long_lists_of_reasons_are_cut():
    changes = [{"changed deps": {f"{i}.py": "modified" for i in range(6)}}]
    assert reasons(changes, has_run=True) == "changed: 0.py, 1.py, 2.py, 3.py and 2 more"


def test_stages_that_have_run_are_those_of_the_lock(tmp_path):
    assert recorded(tmp_path) == set()
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages:\n  evaluate@0:\n    cmd: x\n", encoding="utf-8")
    assert recorded(tmp_path) == {"evaluate@0"}


def test_dvc_is_not_asked_while_it_is_at_work(tmp_path):
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    info = {"pid": os.getpid(), "cmd": "dvc repro"}
    lock = {"write": {"models/base": info}, "read": {"a.py": [info]}}
    (tmp_path / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(lock), encoding="utf-8")
    assert running(tmp_path / ".dvc") == {os.getpid()}
    with pytest.raises(StatusError, match="DVC is at work here"):
        dvc_status(tmp_path)


def test_the_real_dvc_is_understood(project):
    """One stage that has run and whose input then changed, one that has not run."""

    def dvc(*arguments):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True, timeout=120)

    stage = "  {0}: {{cmd: cp {1} {2}, deps: [{1}], outs: [{2}]}}\n"
    Path("dvc.yaml").write_text("stages:\n" + stage.format("first", "a.txt", "b.txt"), encoding="utf-8")
    Path("a.txt").write_text("one", encoding="utf-8")
    dvc("init", "--no-scm", "-q")
    dvc("config", "core.analytics", "false")
    dvc("repro", "-q")
    assert "Nothing to run" in moat("status").stdout
    Path("a.txt").write_text("two", encoding="utf-8")
    Path("dvc.yaml").write_text(
        "stages:\n" + stage.format("first", "a.txt", "b.txt") + stage.format("second", "b.txt", "c.txt"),
        encoding="utf-8",
    )
    done = moat("status")
    assert done.exit_code == 0
    assert [line.strip().split(maxsplit=1) for line in done.stdout.splitlines()[-2:]] == [
        ["first", "changed: a.txt"],
        ["second", "it has not run yet"],
    ]
