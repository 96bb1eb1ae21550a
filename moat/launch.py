"""Start a stage as DVC does: `python -m moat.launch stages/sample.py --round 1 --prev 0`.

Finds the pipeline's folder, puts the project's first on the import path, keeps thread counts and telemetry of libraries in
check, asks the kernel to end the stage together with its parent (a killed `dvc repro` would otherwise leave training
running), and then becomes the stage. Needs nothing but the standard library and the two settings readers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from moat import machine
from moat.params import ParamsError

PR_SET_PDEATHSIG = 1  # linux/prctl.h
AGENT_R = "agent_r"  # the folder of the second pipeline; the first one's is the project's own
# The stage's file is run as it stands. Until its imports are done (`moat.stage.main`), the garbage collector waits, which
# saves a tenth of a stage's start, and Ctrl-C ends the process without a traceback through other people's modules.
START = (
    "import gc, runpy, signal, sys; gc.disable(); signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def find_root(start: Path) -> Path:
    """The pipeline around `start`: the nearest folder with dvc.yaml and params.yaml. Raises FileNotFoundError."""
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no dvc.yaml with params.yaml at or above {start}: run from inside the project")


def project_of(folder: Path) -> Path:
    """The project that a pipeline's folder belongs to: of the second one the folder above, of the first one itself."""
    here = folder.absolute()
    return here.parent if here.name == AGENT_R and not (here / "moat").is_dir() else folder


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends (Linux only; elsewhere nothing happens)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request took effect
            os.kill(os.getpid(), signal.SIGKILL)


def environment(root: Path, threads: int) -> dict[str, str]:
    """The stage's environment variables."""
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": str(root) + (os.pathsep + inherited if inherited else ""),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(max(threads, 2)),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONHASHSEED": "0",
    }


def main() -> None:
    """Replace this process by the stage. Exits 2 on a wrong command line, 1 on wrong settings."""
    if len(sys.argv) < 2 or not sys.argv[1].endswith(".py"):
        sys.exit("usage: python -m moat.launch stages/STAGE.py [ARGUMENT ...]")
    try:
        root = find_root(Path.cwd())
        settings = machine.load(project_of(root))
    except (FileNotFoundError, ParamsError) as error:
        sys.exit(f"error: {error}")
    script = Path(sys.argv[1])
    if not (root / script).is_file():
        sys.exit(f"error: no stage {script} in {root}; stages are {sorted(p.name for p in root.glob('stages/*.py'))}")
    os.chdir(root)
    die_with_parent()
    # -P keeps the script's own folder off the import path: stages/evaluate.py must not hide the package `evaluate`
    command = [sys.executable, "-P", "-c", START, str(script), *sys.argv[2:]]
    os.execve(sys.executable, command, environment(project_of(root), settings.threads))


if __name__ == "__main__":
    main()
