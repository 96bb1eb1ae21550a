"""How a stage is started: moat/launch.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moat.launch import environment, find_root

ROOT = Path(__file__).resolve().parent.parent
TELL = """
import json, os, sys
names = ("HF_HUB_DISABLE_TELEMETRY", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONHASHSEED")
print(json.dumps({
    "arguments": sys.argv, "cwd": os.getcwd(), "safe_path": sys.flags.safe_path, "path": sys.path[:2], "pid": os.getpid(),
    "environment": {name: os.environ.get(name) for name in names},
}))
"""
SLEEP = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(120)\n"


@pytest.fixture
def project(tmp_path):
    """A project's folder with two stages, and a folder deep inside it."""
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "params.yaml").write_text("{}\n")
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "tell.py").write_text(TELL)
    (tmp_path / "stages" / "sleep.py").write_text(SLEEP)
    (tmp_path / "data" / "rounds").mkdir(parents=True)
    return tmp_path


def command(*arguments):
    return [sys.executable, "-P", "-m", "moat.launch", *arguments]


def launch(cwd, *arguments):
    own = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command(*arguments), cwd=cwd, env=own, capture_output=True, text=True, timeout=60, check=False)


# --- the project's folder ---------------------------------------------------------------------------------------------


def test_the_root_is_the_nearest_folder_with_both_files(project):
    """From the root itself and from below; a folder with only one of the two files is passed by."""
    inner = project / "data" / "rounds"
    (inner / "dvc.yaml").write_text("stages: {}\n")
    assert find_root(project) == find_root(inner) == project
    (inner / "params.yaml").write_text("{}\n")
    assert find_root(inner) == inner


def test_outside_a_project_the_error_says_so(tmp_path):
    """In words, to stderr, with exit 1 and no traceback."""
    with pytest.raises(FileNotFoundError, match=r"no dvc\.yaml with params\.yaml at or above"):
        find_root(tmp_path)
    done = launch(tmp_path, "stages/tell.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: no dvc.yaml with params.yaml at or above {tmp_path}: run from inside the project\n"


@pytest.mark.parametrize("arguments", [(), ("tell",), ("--help",)])
def test_a_wrong_command_line_says_the_usage(project, arguments):
    """The first argument is a stage's file."""
    done = launch(project, *arguments)
    assert done.returncode != 0
    assert done.stderr.startswith("usage: python -m moat.launch stages/STAGE.py")


def test_an_unknown_stage_is_answered_by_those_there_are(project):
    """Exit 1 and the list."""
    done = launch(project, "stages/tel.py")
    assert (done.returncode, "'sleep.py', 'tell.py'" in done.stderr) == (1, True)


def test_a_fault_of_machine_yaml_is_told_before_anything_starts(project):
    """The stage does not run."""
    (project / "machine.yaml").write_text("threads: none\n")
    done = launch(project, "stages/tell.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert "machine.yaml" in done.stderr
    assert "threads" in done.stderr


# --- the stage's process ----------------------------------------------------------------------------------------------


def test_what_a_stage_meets(project):
    """Started from below: the root is its folder and first on its path, stages/ is not on it (python -P), arguments pass.

    Telemetry is off and threads are machine.yaml's.
    """
    (project / "machine.yaml").write_text("threads: 3\n")
    done = launch(project / "data" / "rounds", "stages/tell.py", "--round", "1")
    told = json.loads(done.stdout)
    assert told["arguments"] == ["stages/tell.py", "--round", "1"]
    assert (Path(told["cwd"]), Path(told["path"][0]), told["safe_path"]) == (project, project, True)
    assert not any(path.endswith("stages") for path in told["path"])
    assert told["environment"] == {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
    }


@pytest.mark.trap(54)
@pytest.mark.parametrize("module", ["moat.params", "moat.launch"])
def test_a_start_imports_neither_dvc_nor_dvclive(module):
    """Every stage imports these two; the libraries they must not need take seconds, and torch and polars too."""
    code = f"import sys, {module}; print(sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert {"moat", "ruamel"} < loaded
    assert not loaded & {"dvc", "dvclive", "torch", "transformers", "polars", "yaml"}


def test_an_inherited_path_comes_after_the_root(monkeypatch):
    """The checkout's own library wins over whatever PYTHONPATH held."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert environment(Path("/project"), 1)["PYTHONPATH"] == "/project:/elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    assert environment(Path("/project"), 1)["PYTHONPATH"] == "/project"


WAIT = """
import os, time
from moat.stage import main
if "EARLY" in os.environ:
    print("importing", flush=True)
    time.sleep(120)
def run(stage):
    print("running", flush=True)
    time.sleep(120)
main(__file__, run)
"""


@pytest.mark.parametrize(("when", "status", "said"), [("EARLY", -signal.SIGINT, ""), ("LATE", 130, "interrupted wait")])
def test_ctrl_c_ends_a_stage_without_a_traceback(project, when, status, said):
    """While it works one line says that nothing finished is lost; while libraries are imported there is nothing to say."""
    for name in ("moat", "params.yaml", "dvc.yaml"):
        (project / name).unlink(missing_ok=True)
    shutil.copytree(ROOT / "moat", project / "moat", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, project / name)
    (project / "stages" / "wait.py").write_text(WAIT)
    process = subprocess.Popen(
        command("stages/wait.py"),
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project), when: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() in ("importing\n", "running\n")
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == status
    assert "Traceback" not in errors
    assert errors.startswith(said)
    assert len(errors.splitlines()) == bool(said)


def ended(pid):
    """Whether a process is gone, or a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.trap(52)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_stage_ends_with_its_parent(project):
    """`kill -9` of dvc would otherwise leave the training running, and the next repro would start a second writer."""
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *command("stages/sleep.py")],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    pid = None
    try:
        for _ in range(600):
            if (project / "pid").exists() and (project / "pid").read_text():
                pid = int((project / "pid").read_text())
                break
            time.sleep(0.1)
        assert pid is not None
        assert not ended(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for _ in range(100):
            if ended(pid):
                break
            time.sleep(0.1)
        assert ended(pid)
    finally:
        parent.kill()
        parent.wait()
        if pid is not None and not ended(pid):
            os.kill(pid, signal.SIGKILL)
