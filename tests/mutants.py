"""Break the code in known ways and see the tests notice.

    python tests/mutants.py [--only AREA ...] [--quick] [--jobs N] [--list]

A mutation is one wrong change, kept as data in tests/mutations/AREA.toml:

    [[mutation]]
    trap = [5]                            # its numbers among the traps, may be empty
    file = "moat/engines/hf.py"
    old = "exact text that occurs once"
    new = "what stands there instead"
    tests = ["tests/test_engine.py::test_x"]   # each of them must fail
    why = "what is wrong with it"

Every named test first runs on an unchanged copy of the project, where it must pass. Then each mutation gets a copy and a
process of its own, and is killed when each of its tests fails by an assertion or an exception: in an import, a collection,
or a name that is not there, nothing was tested. Exits 0 when all mutations are killed, 1 when one survives, 2 when the
data or the unchanged project is at fault.

Processes are forks of one that has imported the big libraries, so a mutation costs little more than its tests.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {"trap", "file", "old", "new", "tests", "why"}
# Never needed by a test, or too big to copy: what git ignores, and git itself. `data` and `models` only at the top.
LEFT_OUT = {".git", ".venv", "__pycache__", "cache", "tmp"}
LIBRARIES = ["pytest", "hypothesis", "scipy.stats", "datasets", "polars", "transformers.models.llama.modeling_llama"]
LIBRARIES += ["trl.trainer.dpo_trainer", "trl.trainer.sft_trainer"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
SECONDS = 600  # a mutation may make a loop endless
UNTESTED = (ImportError, SyntaxError, NameError)  # an exception of these says that the mutation is no program


class DataError(ValueError):
    """A mutation that cannot be applied, or a named test that does not pass without it."""


@dataclass(frozen=True)
class Mutation:
    """One wrong change and the tests that must notice it; `name` is AREA:number, counted from 1."""

    name: str
    trap: list[int]
    file: str
    old: str
    new: str
    tests: list[str]
    why: str


@dataclass
class Result:
    """What a run of pytest saw: each test's outcomes, the exceptions of the failed ones, and pytest's exit code."""

    exit_code: int = -1
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # by node id: the exception's name, or `untested: …`
    broken: list[str] = field(default_factory=list)  # files that could not be collected
    output: str = ""

    def outcome(self, test: str) -> str:
        """`failed`, `passed`, or why neither can be said, of a node id or all cases of a parametrised one."""
        mine = {name: why for name, why in self.failed.items() if _is(name, test)}
        if any(not why.startswith("untested") for why in mine.values()):
            return "failed"
        if mine:
            return next(iter(mine.values()))
        if any(_is(name, test) for name in self.passed):
            return "passed"
        if self.broken:
            return f"could not collect {self.broken[0]}"
        return "no result: skipped, not there, out of time or crashed"


def _is(name: str, test: str) -> bool:
    return name == test or name.startswith((test + "[", test + "::"))


# --- the data ---------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[Mutation]:
    """All mutations of a folder of TOML files. Raises DataError for unknown, missing or wrong fields."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if set(content) != {"mutation"}:
            raise DataError(f"{path.name}: the top level holds [[mutation]] and nothing else, not {sorted(content)}")
        for number, entry in enumerate(content["mutation"], 1):
            name = f"{path.stem}:{number}"
            if set(entry) != FIELDS:
                raise DataError(f"{name}: fields {sorted(set(entry) ^ FIELDS)} are missing or unknown")
            if not entry["tests"] or entry["old"] == entry["new"]:
                raise DataError(f"{name}: it names no tests, or changes nothing")
            found.append(Mutation(name, **entry))
    return found


def mutated(root: Path, mutation: Mutation) -> str:
    """The file's text with the mutation. Raises DataError unless the old text occurs exactly once."""
    path = root / mutation.file
    if not path.is_file():
        raise DataError(f"{mutation.name}: there is no {mutation.file}")
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutation.old)) != 1:
        raise DataError(f"{mutation.name}: its `old` occurs {times} times in {mutation.file}, not once: {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)


# --- running ----------------------------------------------------------------------------------------------------------


@contextmanager
def project(root: Path) -> Iterator[Path]:
    """A copy of the project in a temporary folder, without its data, models and caches."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        made = {"data", "models"} if Path(folder) == root else set()
        return {name for name in names if name in LEFT_OUT | made or name.endswith("_cache")}

    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        copy = Path(temporary) / "project"
        shutil.copytree(root, copy, ignore=left_out)
        for made in ("data", "models"):  # git keeps these two for their README
            if (root / made / "README.md").is_file():
                (copy / made).mkdir()
                shutil.copyfile(root / made / "README.md", copy / made / "README.md")
        yield copy


class _Recorder:
    """A pytest plugin that keeps outcomes."""

    def __init__(self, awaited: Sequence[str]) -> None:
        self.result = Result()
        self.awaited = awaited  # the tests that are to fail; once all have, the rest of their cases says nothing new

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is None:
            if call.when == "call":
                self.result.passed.append(item.nodeid)
            return
        kind = call.excinfo.type
        if kind.__name__ == "Skipped":
            return
        untested = issubclass(kind, UNTESTED) or kind.__name__ in ("FixtureLookupError", "XFailed")
        self.result.failed[item.nodeid] = f"untested: {kind.__name__}" if untested else kind.__name__
        if self.awaited and all(self.result.outcome(test) == "failed" for test in self.awaited):
            item.session.shouldstop = "every test has failed"

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.result.broken.append(report.nodeid)


def _pytest(copy: Path, tests: Sequence[str], to_fail: bool, log: Path, answer: Any) -> None:
    """In a process of its own: run `tests` in `copy` and send the result."""
    import pytest

    os.setsid()  # so that what the tests start can be ended with them
    if sys.platform == "linux":  # an endless test must not outlive a runner that is killed
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the server of forks ends with the runner
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the search for plugins takes seconds
    sys.path[:] = [str(copy), *(p for p in sys.path if p and not Path(p).resolve().is_relative_to(ROOT / "tests"))]
    recorder = _Recorder(tests if to_fail else [])
    with log.open("w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        recorder.result.exit_code = int(
            pytest.main(["-q", "--tb=short", "-p", "no:cacheprovider", *tests], plugins=[recorder])
        )
    answer.send(recorder.result)


def run(copy: Path, tests: Sequence[str], to_fail: bool) -> Result:
    """Run `tests` in a fresh process, until all have failed if they are to.

    A process that crashes or takes too long has no results but pytest's output so far.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    log = copy.parent / "pytest.txt"
    process = context.Process(target=_pytest, args=(copy, list(tests), to_fail, log, sender))
    process.start()
    sender.close()
    result = Result()
    try:
        if receiver.poll(SECONDS):
            result = receiver.recv()
    except EOFError:
        pass  # it died; what it printed tells more
    finally:
        if process.is_alive():
            process.join(10)
        if process.is_alive():
            process.kill()
        process.join()
    result.output = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return result


def baseline(root: Path, mutations: Sequence[Mutation]) -> None:
    """Run every named test once on the unchanged project. Raises DataError unless all of them pass."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    with project(root) as copy:
        result = run(copy, tests, to_fail=False)
    wrong = [f"{test}: {outcome}" for test in tests if (outcome := result.outcome(test)) != "passed"]
    if wrong or result.exit_code != 0:
        raise DataError("without any mutation:\n  " + "\n  ".join(wrong) + "\n" + result.output[-3000:])


def judge(root: Path, mutation: Mutation) -> Result:
    """Apply one mutation to a copy and run its tests."""
    with project(root) as copy:
        (copy / mutation.file).write_text(mutated(root, mutation), encoding="utf-8")
        return run(copy, mutation.tests, to_fail=True)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, say: Callable[[str], None] = print) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Break the code in known ways and see the tests notice.")
    parser.add_argument("--only", action="append", metavar="AREA", help="a file of tests/mutations, or AREA:NUMBER")
    parser.add_argument("--quick", action="store_true", help="the first mutation of every file")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at once (default 1)")
    parser.add_argument("--list", action="store_true", help="show the mutations and run nothing")
    options = parser.parse_args(arguments)
    try:
        mutations = read(root / "tests" / "mutations")
        if options.only:
            mutations = [m for m in mutations if {m.name, m.name.split(":")[0]} & set(options.only)]
        if options.quick:
            mutations = [m for m in mutations if m.name.endswith(":1")]
        if not mutations:
            raise DataError("no mutations to try: see tests/mutations")
        for mutation in mutations:
            mutated(root, mutation)
        if options.list:
            for m in mutations:
                say(f"{m.name:16} trap {', '.join(map(str, m.trap)) or '-':10} {m.file}: {m.why}")
            return 0
        os.environ.update(ENVIRONMENT)
        multiprocessing.get_context("forkserver").set_forkserver_preload(LIBRARIES)
        baseline(root, mutations)
    except DataError as error:
        say(f"error: {error}")
        return 2
    survived = 0

    def timed(mutation: Mutation) -> tuple[Result, float]:
        start = time.monotonic()
        return judge(root, mutation), time.monotonic() - start

    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation, (result, seconds) in zip(mutations, pool.map(timed, mutations), strict=True):
            alive = {test: outcome for test in mutation.tests if (outcome := result.outcome(test)) != "failed"}
            survived += bool(alive)
            traps, by = ",".join(map(str, mutation.trap)), ", ".join(sorted(set(result.failed.values())))
            say(
                f"{'SURVIVED' if alive else 'killed  '} {mutation.name:14} {traps:6} {seconds:4.0f} s  {mutation.why} ({by})"
            )
            for test, outcome in alive.items():
                say(f"         {test}: {outcome}")
    say(f"{len(mutations)} mutations, {len(mutations) - survived} killed, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
