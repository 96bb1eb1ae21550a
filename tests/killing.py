"""A training that ends in its midst, as a kill ends it."""

import contextlib


class KilledError(BaseException):
    """Ends a stage as a kill does: nothing catches it."""


def killed_after(stage, updates):
    """End the training of `stage` once it has made so many updates (None: never); one that ends has made all."""

    @contextlib.contextmanager
    def progress(label, total):
        done = []

        def advance(n):
            done.append(n)
            if label != "reference" and updates is not None and sum(done) >= updates:
                raise KilledError

        yield advance
        if label != "reference":
            assert sum(done) == total

    stage.progress = progress
