"""Engines in child processes: several side by side, or one whose memory has to be given back.

`Children` starts fresh interpreters (`python -m moat.engines.child`; multiprocessing's own way would run the stage's file
again), each with one engine and a socket to the stage. Whoever is idle gets the next batch, so batches are finished in any
order; an engine's answers do not depend on which process it is in.

A child that dies takes no answer along: it is started again and its batch asked again in halves, a single request
`Retry.attempts` times. What a child raises that is no EngineError is raised here, with the child's traceback. What it prints
goes to its log file. When the stage ends, however it ends, its children do: by their end of the socket, and by the kernel
where it can be asked (Linux).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from pathlib import Path

import moat
from moat.engines.base import EngineError
from moat.engines.spec import Spec
from moat.launch import die_with_parent, environment
from moat.wire import pack_raised, pack_reply, pack_work, unpack_reply, unpack_work
from moat.workers import Here, Reply, Retry, Work

READY = b"ready"  # what a child says when it can be asked
LOOK = 5.0  # seconds between two looks at whether a silent child is still there
PATIENCE = 20.0  # seconds that a child has to end by itself
SHOWN = 400  # characters of a log in an error


@dataclass(slots=True)
class _Part:
    """Rows of a batch: which batch, the first of its rows, and how often a child died of them alone."""

    number: int
    start: int
    work: Work
    deaths: int = 0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    line: Connection
    ready: bool = False
    part: _Part | None = None


class _Batches:
    """What is still to be asked, and the replies as far as they are there."""

    def __init__(self, works: Sequence[Work], attempts: int) -> None:
        self.attempts = attempts
        self.waiting = deque(_Part(number, 0, work) for number, work in enumerate(works))
        self.replies = [Reply([None] * len(work)) for work in works]
        self._missing = [len(work) for work in works]

    def put(self, part: _Part, reply: Reply) -> Iterator[tuple[int, Reply]]:
        """Some of a batch's answers have come. Gives the batch if that was all of it."""
        whole = self.replies[part.number]
        whole.answers[part.start : part.start + len(part.work)] = reply.answers
        whole.calls += reply.calls
        whole.failure = reply.failure or whole.failure
        self._missing[part.number] -= len(part.work)
        if not self._missing[part.number]:
            yield part.number, whole

    def died(self, part: _Part, how: str) -> Iterator[tuple[int, Reply]]:
        """The child that had `part` is dead: it waits in halves, or has failed."""
        rows = len(part.work)
        if rows == 1 and part.deaths + 1 >= self.attempts:
            yield from self.put(part, Reply([None], 1, how))
            return
        self.replies[part.number].calls += 1
        self.replies[part.number].failure = how
        if rows == 1:
            self.waiting.appendleft(replace(part, deaths=part.deaths + 1))
            return
        for rest in (slice(rows // 2, None), slice(None, rows // 2)):
            self.waiting.appendleft(_Part(part.number, part.start + (rest.start or 0), part.work.part(rest)))


@dataclass
class Children:
    """`len(gpus)` engines of one model, each in a child process that sees its own GPUs (none: those of this process).

    `log` is the beginning of the path of the children's log files.
    """

    spec: Spec
    retry: Retry
    log: Path
    gpus: Sequence[Sequence[str]] = ((),)

    def __post_init__(self) -> None:
        self._children: dict[int, _Child] = {}
        self._logs: set[Path] = set()  # those of this run
        weakref.finalize(self, _end, self._children)

    def start(self, count: int | None = None) -> None:
        """See that `count` children live, by default all: their imports go on beside other work."""
        wanted = min(len(self.gpus), len(self.gpus) if count is None else count)
        for index in range(len(self.gpus)):
            if len(self._children) < wanted and index not in self._children:
                self._children[index] = self._start(index)

    def close(self) -> None:
        """End the children, with their memory."""
        _end(self._children)

    def run(self, works: Sequence[Work]) -> Iterator[tuple[int, Reply]]:
        """The number of each batch and its reply, as they are finished.

        Raises what a child raises, and EngineError when children do nothing but die.
        """
        batches = _Batches(works, self.retry.attempts)
        # A request that kills whoever reads it does so at every halving and at each of its attempts; allow for three.
        allowed = 3 * (max(map(len, works), default=0).bit_length() + self.retry.attempts)
        deaths = unopened = 0
        try:
            while batches.waiting or any(child.part for child in self._children.values()):
                self.start(len(batches.waiting) + sum(child.part is not None for child in self._children.values()))
                for index in self._told(batches.waiting):
                    child = self._children[index]
                    try:
                        told = child.line.recv_bytes()
                    except (EOFError, OSError):
                        deaths, unopened = deaths + 1, unopened + (not child.ready)
                        how = self._bury(index)
                        if unopened >= self.retry.attempts or deaths > allowed:
                            when = "before its model was open" if unopened >= self.retry.attempts else "without an answer"
                            raise EngineError(f"{how}; {deaths} times {when}: {self.spec.model}") from None
                        if child.part is not None:
                            yield from batches.died(child.part, how)
                        continue
                    try:
                        reply = Reply() if told == READY else unpack_reply(told)
                    except EngineError as error:
                        raise EngineError(f"{error} (log: {self._log(index)})") from error
                    part, child.ready, child.part = child.part, True, None
                    unopened = 0
                    if part is not None:
                        deaths = 0
                        yield from batches.put(part, reply)
        except BaseException:
            self.close()  # whoever is at work would answer a question that nobody asks any more
            raise

    def _told(self, waiting: deque[_Part]) -> list[int]:
        """Give every idle child its next batch; the children that then have something to say, or are not there any more."""
        for child in self._children.values():
            if child.ready and child.part is None and waiting:
                child.part = waiting.popleft()
                with suppress(OSError):  # it is dead, which shows when it is listened to
                    child.line.send_bytes(pack_work(child.part.work))
        lines = {child.line: index for index, child in self._children.items()}
        said = [lines[line] for line in connection.wait(list(lines), LOOK) if isinstance(line, Connection)]
        return said or [index for index, child in self._children.items() if child.process.poll() is not None]

    def _bury(self, index: int) -> str:
        """A child is dead: how it died, in words, with the end of its log."""
        child = self._children.pop(index)
        try:
            code: int | None = child.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        _end({index: child})
        how = "closed its connection" if code is None else f"ended with exit status {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            how += ", as the kernel does when memory runs out" * (code == -signal.SIGKILL)
        log = self._log(index)
        said = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-SHOWN:]
        return f"the engine's process {how}; its log {log} " + (f"ends: {said}" if said else "is empty")

    def _log(self, index: int) -> Path:
        return self.log.with_name(f"{self.log.name}-{index}.log")

    def _start(self, index: int) -> _Child:
        here, there = Pipe()
        environ = environment(Path(moat.__file__).resolve().parent.parent, self.spec.machine.threads)
        if self.gpus[index]:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[index])
        log = self._log(index)
        log.parent.mkdir(parents=True, exist_ok=True)
        with there, log.open("ab" if log in self._logs else "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "moat.engines.child", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environ,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C is the stage's business
            )
        self._logs.add(log)
        with suppress(OSError):  # likewise
            here.send((self.spec, self.retry))
        return _Child(process, here)


def _end(children: dict[int, _Child]) -> None:
    """End processes, and whatever they have started."""
    for child in children.values():
        child.line.close()
    for child in children.values():
        if child.ready and child.part is None:  # it sees the end of its line, and clears away what it has opened
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(PATIENCE)
        with suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
    children.clear()


# --- the child --------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer batches until the other end of the line is closed."""
    die_with_parent()
    line = Connection(int(sys.argv[1]))
    os.set_inheritable(line.fileno(), False)
    try:
        spec, retry = line.recv()
        own = Here(spec.open, retry)
        if spec.prepare():
            own.engine()
        line.send_bytes(READY)
        while True:
            ((_, reply),) = own.run([unpack_work(line.recv_bytes())])
            line.send_bytes(pack_reply(reply))
    except (EOFError, ConnectionError):  # the stage needs no more, or is gone
        own.close()
    except Exception as error:  # noqa: BLE001 -- raised again where the stage is
        traceback.print_exc()
        line.send_bytes(pack_raised(error))
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(0)  # a quarter of a second is saved that other modules take to clear away


if __name__ == "__main__":
    main()
