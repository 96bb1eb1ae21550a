"""What all environments share: moat/environments/base.py, and how a missing package or Java is said."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.environments.base import Environment, Episode, EpisodeError, EpisodeErrorKind, share, whole_number
from moat.environments.java import find_java
from moat.environments.packages import package_file


class Ladder(Environment):
    """`up` gains a point of ten, which ends the episode; `fall` loses ten at once. `drift` is added to what is seen."""

    name = "ladder"
    drift = 0

    def episode(self):
        return LadderEpisode(self)

    def scale(self, raw):
        return share(raw, 10.0)

    def gold(self, task):
        return ("up",) * 10


class LadderEpisode(Episode):
    closed = False

    def _reset(self, task):
        if task != "ladder/a":
            raise self.environment.unknown(task, "there is ladder/a")
        self.height = 0
        return "the foot"

    def _step(self, action):
        self.height += {"up": 1, "fall": -10}.get(action, 0)
        return f"at {self.height + self.environment.drift}", self.height, self.height >= 10 or self.height < 0

    def close(self):
        self.closed = True


def failure(kind, call, *arguments):
    with pytest.raises(EpisodeError) as caught:
        call(*arguments)
    assert caught.value.kind is kind
    return caught.value


def climbed(*actions, **settings):
    episode = Ladder(**settings).episode()
    episode.replay("ladder/a", actions)
    return episode


@pytest.mark.trap(37)
def test_rewards_are_numbers_raw_and_from_0_to_1():
    episode = climbed("up", "up", "dance")
    assert [(step.reward_raw, step.reward, step.observation) for step in episode.steps] == [
        (1.0, 0.1, "at 1"),
        (2.0, 0.2, "at 2"),
        (2.0, 0.2, "at 2"),
    ]
    assert all(type(value) is float for step in episode.steps for value in (step.reward_raw, step.reward))
    fallen = climbed("up", "fall").steps[-1]
    assert (fallen.reward_raw, fallen.reward, fallen.terminal) == (-9.0, 0.0, True)


def test_the_end_and_the_horizon_are_told_apart():
    assert [(step.terminal, step.done) for step in climbed(*["up"] * 10).steps][-2:] == [(False, False), (True, True)]
    assert [(step.terminal, step.done) for step in climbed("up", "up", horizon=2).steps] == [(False, False), (False, True)]


def test_a_step_after_the_end_or_before_a_reset_is_an_error():
    episode = climbed("up", "up", horizon=2)
    assert "ladder/a: the episode is over after 2 steps" in str(failure(EpisodeErrorKind.OVER, episode.step, "up"))
    assert len(episode.steps) == 2
    episode.reset("ladder/a")
    assert (episode.reward, episode.done, episode.steps) == (0.0, False, [])
    assert "reset" in str(failure(EpisodeErrorKind.OVER, Ladder().episode().step, "up"))


def test_an_episode_of_an_unknown_task_cannot_go_on_with_the_last_one():
    episode = climbed("up")
    error = failure(EpisodeErrorKind.UNKNOWN_TASK, episode.reset, "ladder/b")
    assert (error.task, error.environment) == ("ladder/b", "ladder")
    assert str(error) == "ladder/b: there is no such task in ladder; there is ladder/a"
    failure(EpisodeErrorKind.OVER, episode.step, "up")


def test_a_recorded_state_is_brought_back():
    recorded, episode = climbed("up", "dance", "up"), Ladder().episode()
    episode.rebuild("ladder/a", recorded.first, recorded.steps)
    assert episode.steps == recorded.steps
    assert episode.step("up").observation == "at 3"


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (1, {"observation": "at 3"}, "step 2 of 3, 'dance', read 'at 3' when recorded and 'at 1' now"),
        (2, {"reward_raw": 0.5}, "step 3 of 3, 'up', scored 0.5 when recorded and 2 now"),
        (0, {"terminal": True}, "step 1 of 3, 'up', scored 1 (the end) when recorded and 1 now"),
    ],
)
def test_an_environment_that_answers_differently_is_named_with_the_step(number, changes, said):
    recorded = climbed("up", "dance", "up")
    steps = recorded.steps.copy()
    steps[number] = replace(steps[number], **changes)
    error = failure(EpisodeErrorKind.REPLAY, Ladder().episode().rebuild, "ladder/a", recorded.first, steps)
    assert (error.task, str(error)) == ("ladder/a", f"ladder/a: {said}")


def test_another_first_observation_is_named_from_where_it_parts():
    error = failure(EpisodeErrorKind.REPLAY, Ladder().episode().rebuild, "ladder/a", "the top", [])
    assert str(error) == "ladder/a: the first observation read 'the top' when recorded and 'the foot' now"
    far = "x" * 500
    error = failure(EpisodeErrorKind.REPLAY, Ladder().episode().rebuild, "ladder/a", "the foot" + far, [])
    assert len(str(error)) < 250


def test_a_clone_goes_its_own_way():
    episode = climbed("up", horizon=5)
    clone = episode.clone()
    clone.step("up")
    assert ([step.observation for step in episode.steps], clone.steps[-1].observation) == (["at 1"], "at 2")
    assert (clone.horizon, clone.task) == (5, "ladder/a")
    assert Ladder().episode().clone().task == ""


def test_a_clone_of_a_drifting_environment_is_an_error():
    episode = climbed("up")
    episode.environment.drift = 1
    failure(EpisodeErrorKind.REPLAY, episode.clone)


def test_the_solving_part_of_a_path():
    assert Ladder().solving("ladder/a", ["dance", *["up"] * 12]) == ("dance", *["up"] * 10)
    assert Ladder().solving("ladder/a", ["up", "up"]) is None
    assert Ladder().solving("ladder/a", ["fall", "up"]) is None
    assert len(Ladder(horizon=3).solving("ladder/a", ["up"] * 10)) == 10


def test_an_episode_is_closed_when_its_block_ends_or_fails():
    with Ladder().episode() as episode:
        pass
    assert episode.closed
    with pytest.raises(KeyError), Ladder().episode() as episode:
        raise KeyError
    assert episode.closed


def test_a_horizon_without_steps_is_refused():
    with pytest.raises(ValueError, match="horizon is 0"):
        Ladder(horizon=0)


@given(st.floats(allow_nan=False), st.sampled_from([1.0, 100.0]))
def test_a_share_is_from_0_to_1_and_keeps_the_order(raw, full):
    assert 0 <= share(raw, full) <= 1
    assert share(raw, full) <= share(raw + 1, full)


@given(st.text(max_size=12) | st.integers(-(10**12), 10**12).map(str))
def test_a_number_has_one_spelling(text):
    number = whole_number(text)
    assert number is None or (str(number) == text and 0 <= number < 10**9)


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("17", 17), ("017", None), ("-1", None), ("٣", None), ("1\n", None)])
def test_numbers(text, number):
    assert whole_number(text) == number


def test_a_missing_package_is_said_with_what_to_install():
    error = failure(EpisodeErrorKind.MISSING, package_file, "no_such_package", "no-such==1", "data", "ladder")
    assert str(error) == (
        "ladder: the package no-such==1 is not installed, or is of another release (no data);"
        ' pip install -c constraints.txt -e ".[agent-r]" installs it'
    )
    failure(EpisodeErrorKind.MISSING, package_file, "moat", "moat", "no_such_file", "ladder")


def test_missing_java_is_said_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "default-jre-headless" in str(failure(EpisodeErrorKind.MISSING, find_java, "ladder"))
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    assert find_java("ladder") == str(java)
