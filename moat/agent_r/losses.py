"""What a run may lose to environments and engines: tasks, pairs and plays that are dropped by reason, up to a share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moat.environments.base import EpisodeErrorKind

# What costs a task and not the run; a missing package or a server that is not there stops it.
LOST = frozenset({EpisodeErrorKind.UNKNOWN_TASK, EpisodeErrorKind.REPLAY, EpisodeErrorKind.FAULT})


class LostError(RuntimeError):
    """More was lost than `limits.max_dropped` allows; the message counts it by reason and quotes the first."""


def check(lost: Sequence[tuple[str, str]], what: str, of: int, allowed: float, remedy: str) -> None:
    """`lost` are reasons and messages. Raises LostError when they are over the share `allowed` of `of` tasks (`what`)."""
    if len(lost) > allowed * of:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(Counter(reason for reason, _ in lost).items()))
        raise LostError(
            f"{len(lost):,} of {of:,} {what} were lost ({reasons}), over limits.max_dropped {allowed:g} in params.yaml; the "
            f"first: {lost[0][1]}. {remedy}"
        )
