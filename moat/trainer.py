"""Training in several processes: what the stage does (it starts them, listens, ends them), and what each of them does.

The stage writes a job into its scratch folder: the rows as Parquet, so that the processes share one cache of them, and all
else as JSON. `accelerate launch` starts the processes with the strategy's configuration (`configs/`); each runs

    python -m moat.trainer JOB

They talk through a named pipe, which a full disk does not close: updates made, and what went wrong. The first process leaves
the trained weights and the log in the job's folder. What is printed goes to a log file, which stays where it is when the
processes fail in a way that nobody foresaw.

The processes end with their launcher, and the launcher ends with the stage (Linux: the kernel sees to it).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moat.launch import die_with_parent, environment
from moat.machine import Machine
from moat.params import Lora
from moat.seeds import content_id
from moat.wire import name_of, named

if TYPE_CHECKING:
    from moat.stage import Advance, Stage
    from moat.training import Checkpoints, Job

CODE = Path(__file__).resolve().parent.parent
CONFIGS = CODE / "configs"
JOB, ROWS, CACHE, PIPE, LOG = "job.json", "rows.parquet", "cache", "pipe", "log"
TRAINED, LOGGED = "trained.safetensors", "logged.json"  # what the first process leaves
START = "from moat.launch import die_with_parent; die_with_parent(); from accelerate.commands.launch import main; main()"
SETTINGS = ("use_cache", "bos_token_id", "eos_token_id", "pad_token_id")  # of a model, which the trainer sets
TAIL = 15  # lines of a failed training's log that are shown
WHOLE = 4096  # bytes that are written to a pipe at once (PIPE_BUF); processes that write more would mix their lines
PATIENCE = 10  # seconds in which processes that are asked to end do so


class TrainingError(RuntimeError):
    """Training processes that failed in an unforeseen way; the message has the end of their log, and where it lies."""


# --- the stage's side -------------------------------------------------------------------------------------------------


def config(strategy: str) -> Path:
    """The strategy's configuration of accelerate."""
    return CONFIGS / f"{strategy}.yaml"


def command(folder: Path, machine: Machine) -> list[str]:
    """What starts the processes of the job in `folder`."""
    return [
        *(sys.executable, "-P", "-c", START),
        *("--config_file", str(config(machine.strategy)), "--num_processes", str(machine.processes)),
        *("--num_cpu_threads_per_process", str(machine.threads), "--main_process_port", "0"),  # 0: a free one
        *(_offload(machine.strategy) if machine.offload else ()),
        *("-m", "moat.trainer", str(folder)),
    ]


def _offload(strategy: str) -> tuple[str, ...]:
    if strategy == "fsdp":
        return "--fsdp_offload_params", "true"
    return "--offload_optimizer_device", "cpu", *(("--offload_param_device", "cpu") if strategy == "zero3" else ())


def _environment(machine: Machine, device: str) -> dict[str, str]:
    own = {"PYTHONSAFEPATH": "1"}  # as -P does: neither stages/ nor the folder that is worked in hides a package
    if device == "cpu":
        own |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return environment(CODE, machine.threads) | own


def run(
    stage: Stage[Any],
    job: Job,
    columns: Mapping[str, list[Any]],
    start: Path,
    seed: int,
    checkpoints: Checkpoints,
    advance: Advance,
) -> tuple[dict[str, Any], list[dict[str, float]], list[dict[str, Any]]]:
    """Train what `start` holds in the processes that machine.yaml asks for.

    Returns the trained weights by name, the log, and what of the model's and of its generation's settings a trainer sets.

    Raises what the processes raise (RowError, BatchError, FloatingPointError, OSError), else TrainingError.
    """
    from datasets import Dataset, disable_progress_bars
    from safetensors.torch import load_file

    from moat.models import device_and_dtype
    from moat.publish import disk_full_at

    folder = stage.scratch.resolve() / "jobs" / f"{content_id(stage.root.resolve())}-{stage.label}"
    told = {
        "job": asdict(job),
        "start": str(start.resolve()),
        "machine": stage.machine.model_dump(),
        "lora": stage.params.lora.model_dump(),
        "seed": seed,
        "checkpoints": [str(checkpoints.folder.resolve()), checkpoints.seconds],
    }
    disable_progress_bars()
    shutil.rmtree(folder, ignore_errors=True)
    with disk_full_at(folder):
        folder.mkdir(parents=True)
        Dataset.from_dict(dict(columns)).to_parquet(folder / ROWS)
        (folder / JOB).write_text(json.dumps(told), encoding="utf-8")
    device, _ = device_and_dtype(stage.machine)
    try:
        _attend(folder, stage, _environment(stage.machine, device), advance)
        left = json.loads((folder / LOGGED).read_text(encoding="utf-8"))
        if left["strategy"] != stage.machine.strategy:
            raise AssertionError(f"asked for strategy {stage.machine.strategy}, the processes shared as {left['strategy']}")
        return load_file(folder / TRAINED), left["log"], left["settings"]
    except TrainingError:
        for path in (path for path in folder.iterdir() if path.name != LOG):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
    finally:
        if (folder / JOB).exists():
            shutil.rmtree(folder)


def _attend(folder: Path, stage: Stage[Any], env: dict[str, str], advance: Advance) -> None:
    """Start the processes of a job and listen to them until they have ended."""
    os.mkfifo(folder / PIPE)
    pipe = os.open(folder / PIPE, os.O_RDWR | os.O_NONBLOCK)
    errors: dict[int, Exception] = {}
    try:
        with (folder / LOG).open("wb") as log, _started(command(folder, stage.machine), env, stage.root, log) as process:
            waiting = b""
            while process.poll() is None or select.select([pipe], [], [], 0)[0]:
                if not select.select([pipe], [], [], 0.2)[0]:
                    continue
                *lines, waiting = (waiting + os.read(pipe, 1 << 16)).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if "done" in said:
                        advance(said["done"])
                    else:
                        errors[said["process"]] = named(said["kind"], said["args"]) or OSError(*said["args"])
    finally:
        os.close(pipe)
    if errors:
        raise errors[min(errors)]
    if process.returncode or not (folder / LOGGED).is_file():
        text = (folder / LOG).read_text(encoding="utf-8", errors="replace")
        tail = "\n".join(f"    {line}" for line in text.splitlines()[-TAIL:])
        raise TrainingError(
            f"the training processes ended with status {process.returncode}; the end of their log:\n{tail}\n"
            f"  all of it is in {folder / LOG}"
        )


@contextmanager
def _started(arguments: list[str], env: dict[str, str], root: Path, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher, in a session of its own: Ctrl-C is the stage's to answer. It is ended with the block."""
    process = subprocess.Popen(
        arguments, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- a process's side -------------------------------------------------------------------------------------------------


def _ours(error: Exception) -> bool:
    """Whether an error's text says what to do; any other is told by the log."""
    if isinstance(error, ConnectionError | TimeoutError):
        return False  # of a process whose partner is gone
    return type(error).__module__.startswith("moat.") or isinstance(error, OSError | FloatingPointError)


def _work(folder: Path, tell: Advance) -> None:
    """Train one process's share; the first one leaves the result in `folder`."""
    from datasets import load_dataset
    from safetensors.torch import save_file

    from moat import models, training
    from moat.publish import disk_full_at

    told = json.loads((folder / JOB).read_text(encoding="utf-8"))
    machine, lora, start = Machine(**told["machine"]), Lora(**told["lora"]), Path(told["start"])
    place, seconds = told["checkpoints"]
    models.set_up(machine)
    rows = load_dataset("parquet", data_files=str(folder / ROWS), split="train", cache_dir=str(folder / CACHE))
    learned: list[str] = []

    def load() -> Any:
        model = training.to_train(start, machine, lora, told["seed"])
        learned.extend(name for name, weight in model.named_parameters() if weight.requires_grad)
        return model

    trainer = training.train(
        training.Job(**told["job"]),
        rows,
        load,
        models.load_tokenizer(start),
        tell,
        training.Checkpoints(Path(place), seconds),
    )
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # every process gives its part
    if trainer.is_world_process_zero():
        with disk_full_at(folder):
            save_file({name: weights[name].detach().cpu().contiguous() for name in learned}, folder / TRAINED)
            left = {
                "log": training.log_of(trainer),
                "strategy": _strategy(trainer.model_wrapped),
                "settings": [
                    {name: getattr(one, name) for name in SETTINGS if hasattr(one, name)}
                    for one in (trainer.model.config, trainer.model.generation_config)
                ],
            }
            (folder / LOGGED).write_text(json.dumps(left), encoding="utf-8")
    trainer.accelerator.end_training()


def _strategy(model: Any) -> str:
    """How the processes really share a model, by what was made of it."""
    kinds = {one.__name__ for one in type(model).__mro__}
    if "DeepSpeedEngine" in kinds:
        return f"zero{model.zero_optimization_stage()}"
    return "fsdp" if "FSDPModule" in kinds else "ddp" if "DistributedDataParallel" in kinds else "plain"


def _line(said: dict[str, Any]) -> bytes:
    """What a process says, its texts cut until they go into a pipe at once."""
    line = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(line) <= WHOLE:
        return line
    shorter = [one[: len(one) * 3 // 4] if isinstance(one, str) else one for one in said["args"]]
    return _line(said | {"args": shorter})


def main() -> None:
    """One process of a training. Exits 1 on an error, which it tells the stage when it is one of ours."""
    die_with_parent()
    folder, process = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
    pipe = os.open(folder / PIPE, os.O_WRONLY | os.O_NONBLOCK)  # fails at once when there is no stage that listens
    os.set_blocking(pipe, True)

    def tell(**said: Any) -> None:
        os.write(pipe, _line(said))

    def advance(n: int) -> None:
        if process == 0:
            tell(done=n)

    try:
        _work(folder, advance)
    except Exception as error:
        if not _ours(error):
            raise
        kind, args = name_of(error)
        tell(process=process, kind=kind, args=args)
        sys.exit(1)


if __name__ == "__main__":
    main()
