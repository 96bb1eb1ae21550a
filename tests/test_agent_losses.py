"""What a run may lose: moat/agent_r/losses.py."""

import pytest

from moat.agent_r.losses import LOST, LostError, check
from moat.environments.base import EpisodeErrorKind


def test_up_to_a_share_is_allowed_and_over_it_the_reasons_and_the_first_are_named():
    lost = [("replay", "t/b: turn 3"), ("fault", "t/a: broke"), ("replay", "t/c: turn 1")]
    check(lost, "pairs", 30, 0.1, "Mend it")
    check([], "pairs", 0, 0.0, "Mend it")
    with pytest.raises(
        LostError,
        match=r"^3 of 29 pairs were lost \(1 fault, 2 replay\), over limits.max_dropped 0.1 .*first: t/b: turn 3. Mend it$",
    ):
        check(lost, "pairs", 29, 0.1, "Mend it")


def test_what_stops_every_task_is_not_lost_by_one():
    assert {kind.value for kind in EpisodeErrorKind} - {kind.value for kind in LOST} == {"over", "missing", "unreachable"}
