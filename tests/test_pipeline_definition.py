"""dvc.yaml, params.yaml and the stage files agree: what DVC would run, on what, and what a stage says when it cannot."""

import ast
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from moat import closure, lock, machine, params
from moat.agent_r.params import AgentParams
from moat.seeds import content_id
from moat.stage import Stage

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Defined:
    """A pipeline as its folder defines it."""

    folder: Path
    settings: type
    up: str  # from its folder to the library
    loops: dict  # stage: what it goes over
    read_models: set  # stages that read a round's model
    roles: str

    @cached_property
    def pipeline(self):
        return YAML(typ="safe", pure=True).load((self.folder / "dvc.yaml").read_text(encoding="utf-8"))

    @cached_property
    def raw(self):
        return YAML(typ="safe", pure=True).load((self.folder / "params.yaml").read_text(encoding="utf-8"))

    @cached_property
    def stages(self):
        """A loop's stage is its template: DVC fills in ${…}, which never stands in the name of a file of ours."""
        return {name: entry.get("do", entry) for name, entry in self.pipeline["stages"].items()}

    @cached_property
    def files(self):
        return {path.stem: path for path in (self.folder / "stages").glob("*.py")}

    @property
    def command(self):
        python = "exec env PYTHONPATH=.. python" if self.up else "exec python"
        return re.compile(re.escape(python) + r" -m moat\.launch (stages/\w+\.py)((?: --\w+ \$\{[\w.]+\})*)")


ROUNDS = "${rounds}"
TEMPLATES = {"": {"report", "reporting"}, "../": {"page", "reporting"}}  # of the page of either pipeline
MOAT = Defined(
    ROOT,
    params.Params,
    "",
    dict.fromkeys(
        ["sample", "score", "ground", "pairs", "align_planner", "critique", "mix", "train_grounder", "dynamics"], ROUNDS
    )
    | {"cold_start": ["planner", "grounder"], "evaluate": "${evaluated}"},
    {"sample", "score", "ground", "align_planner", "train_grounder", "evaluate"},
    "planner|grounder",
)
AGENT_R = Defined(
    ROOT / "agent_r",
    AgentParams,
    "../",
    dict.fromkeys(["search", "revise", "mix", "train"], ROUNDS) | {"evaluate": "${evaluated}"},
    {"search", "revise", "train", "evaluate", "recovery_set"},
    "actor",
)
BOTH = pytest.mark.parametrize("defined", [MOAT, AGENT_R], ids=["moat", "agent_r"])
EVERY = pytest.mark.parametrize(
    ("defined", "name"),
    [(one, name) for one in (MOAT, AGENT_R) for name in one.stages],
    ids=lambda one: getattr(one, "folder", one),
)


def outs(entry):
    """Every output as (path, options)."""
    found = []
    for kind in ("outs", "metrics", "plots"):
        for out in entry.get(kind, []):
            found += out.items() if isinstance(out, dict) else [(out, {})]
    return found


def imports_of(path, root):
    """The modules of ours that a file imports anywhere, found apart from moat/closure.py: by the text of its lines."""
    names = set()
    for line in ast.unparse(ast.parse(path.read_text(encoding="utf-8"))).splitlines():
        line = line.strip()
        if match := re.fullmatch(r"from (moat[\w.]*) import (.+)", line):
            names |= {match[1], *(f"{match[1]}.{part.split(' as ')[0].strip(' ()')}" for part in match[2].split(","))}
        elif match := re.fullmatch(r"import (.+)", line):
            names |= {part.split(" as ")[0].strip() for part in match[1].split(",")}
    files = {root / f"{name.replace('.', '/')}.py" for name in names if name.split(".")[0] == "moat"}
    return {file for file in files if file.is_file()}


def closure_by_hand(script, root):
    found, waiting = set(), [script]
    while waiting:
        new = imports_of(waiting.pop(), root) - found
        found |= new
        waiting += new
    return found


# --- stages and files -------------------------------------------------------------------------------------------------


@BOTH
def test_every_stage_has_its_file_and_every_file_its_stage(defined):
    """stage = file = the script that its command starts; nothing lies in stages/ that DVC does not run."""
    assert {name: defined.command.fullmatch(entry["cmd"])[1] for name, entry in defined.stages.items()} == {
        name: f"stages/{name}.py" for name in defined.files
    }


@pytest.mark.trap(51)
@EVERY
def test_a_stages_code_dependencies_are_its_import_closure(defined, name):
    """deps that are code = {script} and every module of ours that it imports, directly or not, and no other.

    The closure is worked out here by another way than the one that the commands use, and both must agree.
    """
    script = defined.files[name]
    expected = {script, *closure_by_hand(script, ROOT)}
    if name == "report":
        expected |= {path for path in (ROOT / "moat").rglob("*.j2") if path.stem.partition(".")[0] in TEMPLATES[defined.up]}
    code = [dep.removeprefix(defined.up) for dep in defined.stages[name]["deps"] if dep.startswith(f"{defined.up}moat/")]
    code += [dep for dep in defined.stages[name]["deps"] if dep.startswith("stages/")]
    if (defined.up, name) == ("", "prepare"):  # the importers are found by name, so all of them count, a user's own too
        folder = ROOT / "moat" / "sources"
        expected = {path for path in expected if path.parent != folder}
        code.remove("moat/sources")
    told = [str(path.relative_to(defined.folder if path == script else ROOT)) for path in expected]
    assert sorted(code) == sorted(told)
    assert closure.closure(script.relative_to(ROOT), ROOT) == {p.relative_to(ROOT) for p in closure_by_hand(script, ROOT)}


@pytest.mark.trap(51)
def test_the_closure_sees_every_way_to_import(tmp_path):
    """from a package, a module, a name of a module, in a function, under TYPE_CHECKING, and through another module."""
    (tmp_path / "moat" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c", "d", "e", "f", "never", "deep/g"):
        (tmp_path / "moat" / f"{name}.py").write_text("'not here: import moat.never'\n")
    (tmp_path / "moat" / "a.py").write_text("from moat.f import thing\n")
    (tmp_path / "script.py").write_text(
        "import os, moat.b\nfrom moat import a, d as other\nfrom moat.deep.g import (\n    x,\n)\n"
        "if TYPE_CHECKING:\n    from moat.c import T\ndef f():\n    import moat.e as e\n# import moat.never\n"
    )
    found = closure.closure(Path("script.py"), tmp_path)
    assert {path.as_posix() for path in found} == {f"moat/{n}.py" for n in ("a", "b", "c", "d", "e", "f", "deep/g")}


@pytest.mark.parametrize("path", sorted((ROOT / "moat").rglob("__init__.py")), ids=lambda p: p.parent.name)
def test_a_package_file_holds_only_its_docstring(path):
    """Package files are no stage's dependency, so nothing may be computed in them."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert [type(node) for node in body] == [ast.Expr]
    assert isinstance(body[0].value.value, str)


def test_stages_do_not_import_each_other():
    """A stage's file is a dependency of that stage alone."""
    for path in [*MOAT.files.values(), *AGENT_R.files.values(), *(ROOT / "moat").rglob("*.py")]:
        assert not re.search(r"^\s*(from|import) stages\b", path.read_text(encoding="utf-8"), re.MULTILINE), path


# --- DVC --------------------------------------------------------------------------------------------------------------


@pytest.mark.trap(46)
@BOTH
def test_round_keys_are_text_and_lead_back_to_the_cold_start(defined):
    """An unquoted key makes DVC drop the stages without a word. Each prev is a key before its round."""
    raw = defined.raw
    assert all(isinstance(key, str) for section in ("rounds", "evaluated") for key in raw[section])
    for key, entry in raw["rounds"].items():
        assert entry["prev"] == str(int(key) - 1)
    assert set(raw["evaluated"]) == {"0", *raw["rounds"]}
    assert "1" in raw["rounds"]


@pytest.mark.trap(46)
@BOTH
def test_dvc_sees_a_stage_for_every_round(defined, tmp_path):
    """DVC itself resolves the loops: every stage of every round exists, and evaluate@0 does."""
    resolve = pytest.importorskip("dvc.parsing").DataResolver
    from dvc.repo import Repo

    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_text((defined.folder / name).read_text(encoding="utf-8"), encoding="utf-8")
    repo = Repo.init(str(tmp_path), no_scm=True)
    found = set(resolve(repo, str(tmp_path), defined.pipeline).get_keys())
    loops = {name: entry["foreach"] for name, entry in defined.pipeline["stages"].items() if "foreach" in entry}
    assert loops == defined.loops
    keys = {ROUNDS: list(defined.raw["rounds"]), "${evaluated}": list(defined.raw["evaluated"])}
    expected = {name for name in defined.stages if name not in loops}
    expected |= {f"{name}@{key}" for name, over in loops.items() for key in (over if isinstance(over, list) else keys[over])}
    assert found == expected


@pytest.mark.trap(48)
@BOTH
def test_only_the_cheap_stage_has_outputs_outside_the_cache(defined):
    """A stage with any uncached output is not in the run cache: only summarize has some."""
    uncached = {name for name, entry in defined.stages.items() for _, how in outs(entry) if how.get("cache") is False}
    assert uncached == {"summarize"}


@pytest.mark.trap(47)
@BOTH
def test_no_output_outlives_its_stage(defined):
    """`persist` would keep a stale model after a change of params."""
    assert not [path for entry in defined.stages.values() for path, how in outs(entry) if "persist" in how]


@pytest.mark.trap(49)
@BOTH
def test_adding_a_round_reruns_none_that_is_there(defined):
    """A loop's stages list neither `rounds` nor `evaluated`, nor params.yaml, nor a folder of several rounds."""
    for name, entry in defined.stages.items():
        listed = {str(key) for key in entry.get("params", [])}
        assert not listed & {"rounds", "evaluated"} or name == "summarize"
        if "foreach" in defined.pipeline["stages"][name]:
            assert not {"params.yaml", "data/rounds", "data/evals", "data/recoveries", "models"} & set(entry["deps"])


@BOTH
def test_params_of_a_stage_are_keys_of_params_yaml(defined):
    """Whatever a stage lists exists, down to the role."""
    for name, entry in defined.stages.items():
        for key in entry.get("params", []):
            where = defined.raw
            for part in key.replace("${item}", "planner").replace("${key}", "1").split("."):
                assert part in where, (name, key)
                where = where[part]


@EVERY
def test_a_stage_lists_the_parameters_that_it_reads(defined, name):
    """`params.X` and `stage.params.X` in a stage's file are the sections that dvc.yaml lists for it, and no other.

    base_model is also read by moat/making_base.py, max_length and lora by moat/training.py, seed and limits by
    moat/asking.py and moat/toolbox.py, tools by the latter. summarize costs nothing, and may list more than it reads.
    """
    text = defined.files[name].read_text(encoding="utf-8")
    fields = set(defined.settings.model_fields)
    read = {m for m in re.findall(r"\bparams\.(\w+)", ast.unparse(ast.parse(text).body[1:])) if m in fields}
    if "training.train_" in text:
        read |= {"max_length", "lora"}
    if "from moat.making_base" in text:
        read |= {"base_model"}
    if "open_judge(" in text:
        read |= {"seed", "limits"}
    if "params.alpha(" in text:
        read = (read - {"alpha"}) | {"rounds"}
    if "general.read(" in text:
        read |= {"mix"}
    if "open_toolbox(" in text:
        read |= {"tools", "seed", "limits"}
    listed = {key.split(".")[0] for key in defined.stages[name].get("params", [])}
    if "params.yaml" in defined.stages[name]["deps"]:
        listed |= fields
        read |= fields
    assert read <= listed if name == "summarize" else read == listed


@BOTH
def test_no_machine_setting_stands_in_the_pipeline(defined):
    """machine.yaml is no dependency, and none of its keys is a parameter or an argument."""
    text = (defined.folder / "dvc.yaml").read_text(encoding="utf-8")
    assert "machine.yaml" not in text
    keys = set(machine.Machine.model_fields)
    for entry in defined.stages.values():
        assert not keys & {str(key).split(".")[0] for key in entry.get("params", [])}
        assert not keys & set(re.findall(r"--(\w+)", entry["cmd"]))
    assert not keys & set(defined.raw)


def expanded(defined):
    """Every stage with ${…} filled in, as (name, dependencies, outputs)."""
    values = {ROUNDS: defined.raw["rounds"], "${evaluated}": defined.raw["evaluated"]}
    for name, entry in defined.stages.items():
        over = defined.pipeline["stages"][name].get("foreach", [None])
        for key in over if isinstance(over, list) else values[over]:
            prev = values[over][key]["prev"] if isinstance(over, str) else ""

            def fill(text, key=key, prev=prev):
                return text.replace("${item.prev}", prev).replace("${key}", str(key)).replace("${item}", str(key))

            yield f"{name}@{key}", [fill(d) for d in entry["deps"]], [fill(path) for path, _ in outs(entry)]


@BOTH
def test_every_artifact_is_written_once_and_comes_from_somewhere(defined):
    """No two stages write one path, and what a stage reads under data/ or models/ is what another wrote.

    It may read a folder of several outputs, or a file of an output that is a folder.
    """
    written = [path for _, _, paths in expanded(defined) for path in paths]
    assert len(written) == len(set(written))
    for name, deps, _ in expanded(defined):
        for dep in deps:
            if dep.startswith(("data", "models")) and dep != "data/sources":  # which people fill
                inside = any(path.startswith(f"{dep}/") or dep.startswith(f"{path}/") for path in written)
                assert dep in written or inside, (name, dep)


@BOTH
def test_whoever_reads_a_rounds_model_depends_on_the_base(defined):
    """It may be an adapter, which is nothing without it; an unchanged base reruns nothing. moat.json stands alone."""
    asks = set()
    for name, entry in defined.stages.items():
        if any(re.match(rf"models/({defined.roles})/[^/]+$", dep) for dep in entry["deps"]):
            asks.add(name)
            assert "models/base" in entry["deps"], name
            assert "adapters.parts(" in defined.files[name].read_text(encoding="utf-8"), name
    assert asks == defined.read_models


# --- a stage's command line -------------------------------------------------------------------------------------------


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@EVERY
def test_help_says_what_a_stage_reads_and_writes(defined, name, monkeypatch, capsys):
    """--help exits 0 and prints the stage's docstring. Run here, because ten fresh processes would each import TRL."""
    monkeypatch.setattr(sys, "argv", [f"stages/{name}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(defined.files[name]), run_name="__main__")
    told = capsys.readouterr().out
    assert (end.value.code, "Reads " in told, "Writes " in told) == (0, True, True)


@EVERY
def test_a_docstring_gives_the_command_that_dvc_runs(defined, name):
    """The last line of a stage's docstring is its cmd in dvc.yaml, with an example in place of each ${…}."""
    pattern = re.sub(r"\\\$\\\{[^}]*\\\}", r"\\w+", re.escape(re.sub("exec (env [^ ]+ )?", "", defined.stages[name]["cmd"])))
    last = ast.get_docstring(ast.parse(defined.files[name].read_text(encoding="utf-8"))).splitlines()[-1].strip()
    assert re.fullmatch(pattern, last), last


@pytest.fixture
def empty_project(tmp_path, monkeypatch):
    """A folder with params.yaml and nothing that a stage made."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arguments", "missing"),
    [
        ("pairs", {"round": "1"}, "data/tasks/train.parquet"),
        ("critique", {"round": "1"}, "data/tasks/train.parquet"),
        ("mix", {"round": "1", "prev": "0"}, "data/tasks/train.parquet"),
        ("summarize", {}, "data/tasks/train.parquet"),
    ],
)
def test_a_missing_input_is_named(empty_project, stage_module, name, arguments, missing):
    """The error says which file, and to run the stage that writes it or to pull; no output is left behind."""
    stage = Stage(name, params.load(empty_project / "params.yaml"), machine.Machine(), empty_project)
    with pytest.raises(FileNotFoundError, match=rf"^{re.escape(missing)} is missing: .*dvc repro.*dvc pull"):
        stage_module(name).run(stage, **arguments)
    assert sorted(path.name for path in empty_project.iterdir()) == ["dvc.yaml", "params.yaml"]


@pytest.fixture
def start(empty_project):
    """Runs stages/pairs.py (or another) there through the launcher, as DVC starts it."""
    for folder in ("stages", "moat"):
        (empty_project / folder).symlink_to(ROOT / folder)

    def run(*arguments, name="pairs"):
        return subprocess.run(
            [sys.executable, "-m", "moat.launch", f"stages/{name}.py", *arguments],
            cwd=empty_project, env=environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return run


def test_a_fault_is_one_line_and_exit_1(start):
    """No traceback, the stage and the file named, exit 1; a wrong option exits 2."""
    failed = start("--round", "1")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error pairs: data/tasks/train.parquet is missing")
    assert len(failed.stderr.splitlines()) == 1
    assert start("--circle", "1").returncode == 2


@pytest.mark.trap(52)
def test_a_stage_does_not_start_beside_another(empty_project, start):
    """The checkout's lock is held (here by this process): exit 1, and the holder is named before any file is looked for."""
    with lock.hold(empty_project / ".scratch" / "locks" / content_id(empty_project), "stages/sample.py --round 1"):
        failed = start("--round", "1")
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"error pairs: process {os.getpid()} (stages/sample.py --round 1) is at work")


def test_an_evaluation_tells_of_the_parameters_that_rerun_it(stage_module):
    """Were sample.k among them, `moat verify` would warn after its change and send to a `dvc repro` that does nothing."""
    assert {*stage_module("evaluate").READ, "limits.max_failed"} == set(MOAT.stages["evaluate"]["params"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--round", "9", "--prev", "1"), "params.yaml has no round '9'; its rounds are 1, 2"),
        (("--round", "1", "--prev", "1"), "round 1 starts from round 0 (params.yaml), not from '1'"),
    ],
)
def test_a_round_that_params_do_not_have_is_refused(empty_project, start, arguments, said):
    """A stage by hand with another `--prev` would overwrite a round's table with another model's rows."""
    failed = start(*arguments, name="mix")
    assert failed.returncode == 1
    assert said in failed.stderr
