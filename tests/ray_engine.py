"""An engine for actors of Ray, which import it by this file's name."""

import os
import signal
import time

from moat.engines.base import EngineError, FinishReason, Generation


class Fake:
    """Says which process answered, and does what a prompt asks for. Made anew in every actor."""

    def __init__(self, folder=None):
        self.folder = folder

    def __call__(self):
        return self

    def generate(self, prompts, seeds, decoding):
        (kind, *_) = prompts[0]
        if kind == 1:
            raise EngineError("no memory") if len(prompts) > 1 else KeyError("a bug")
        if kind == 2:
            raise FileNotFoundError("no such file: make it")
        if kind == 3 and len(prompts) > 1:
            raise EngineError("too large a batch")
        if kind == 4:
            with (self.folder / "deaths").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == 5:
            (self.folder / f"{os.getpid()}").touch()
            time.sleep(0.2)
        return [Generation([os.getpid(), *prompt], FinishReason.STOP, -1.0) for prompt in prompts]

    def score(self, prompts, completions):
        raise AssertionError
