"""A bad path, a reflection, and what a good path does from there: moat/agent_r/splicing.py."""

import sys
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.agent_r.judges import Label
from moat.agent_r.losses import LOST
from moat.agent_r.params import Pairs
from moat.agent_r.paths import Pair, Path
from moat.agent_r.play import Play
from moat.agent_r.splicing import (
    NO_TURN,
    NOT_BETTER,
    NOT_GOOD,
    NOTHING_LEFT,
    first_bad,
    replayed,
    textual,
    turning_point,
)
from moat.agent_r.turns import ACKNOWLEDGED, REFLECTIONS, Kind, reflection
from moat.environments.base import Environment, Episode, EpisodeErrorKind, share
from moat.environments.textcraft import TextCraft
from moat.react import Several
from tests.agent_trees import spoken

STEEL = "textcraft/flint_and_steel"
GET, INGOT = "get 9 iron nugget", "craft 1 iron ingot using 9 iron nugget"
FLINT, MADE = "get 1 flint", "craft 1 flint and steel using 1 iron ingot, 1 flint"
SORRY, SAID = f"Thought: {REFLECTIONS[3]}", f"Thought: {REFLECTIONS[5]}"
GAP = Pairs(beta=0.2, beta_rule="gap", max_per_tree=4)
LABELS = {"G": Label.GOOD, "B": Label.BAD, "U": Label.UNCERTAIN, "?": Label.UNPARSED}


class Ladder(Environment):
    """Four rungs up to the full reward; who breaks the ladder stays where he is, who jumps is done.

    `drift` is added to what is seen, `faulty` fails on an action; `steps` counts.
    """

    name = "ladder"

    def __init__(self):
        super().__init__()
        self.drift, self.faulty, self.steps = "", "none", 0

    def episode(self):
        return LadderEpisode(self)

    def scale(self, raw):
        return share(raw, 4)

    def gold(self, task):
        return ("up",) * 4


class LadderEpisode(Episode):
    """See `Ladder`."""

    def _reset(self, task):
        self.rung, self.broken = 0, False
        return "A ladder."

    def _step(self, action):
        self.environment.steps += 1
        if action == self.environment.faulty:
            raise self.error(EpisodeErrorKind.FAULT, "out of order")
        self.rung += action == "up" and not self.broken
        self.broken |= action == "break"
        seen = f"Rung {self.rung}{', broken' * self.broken}{self.environment.drift}"
        return seen, 0.0 if action == "jump" else float(self.rung), action == "jump" or self.rung == 4


def path(environment, task, script, end):
    """What really happens along a script."""
    with Play(environment, Several.LAST, sys.maxsize) as play:
        play.begin(task)
        turns = tuple(play.say(spoken(text)) for text in script)
        return Path(end, (), turns, play.reward)


def pair(environment, task, bad, good):
    """The pair of the paths along two scripts."""
    shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(bad, good, strict=False)))
    return Pair(path(environment, task, bad, 1), path(environment, task, good, 2), shared)


def ladder(bad, good=("up",) * 4):
    return pair(Ladder(), "ladder", bad, good)


def labels(text):
    return [LABELS[letter] for letter in text]


@pytest.mark.trap(38)
@pytest.mark.parametrize(
    ("said", "first", "turn"),
    [
        ("GGBGG", 2, 2),
        ("GBBGG", 1, 1),
        ("BGGBG", 0, 3),  # the flag in the common history is no turning point
        ("BBGGG", 0, 1),
        ("BGGGG", 0, NO_TURN),
        ("GUUUU", None, NO_TURN),
        ("GG???", None, NO_TURN),
    ],
)
def test_the_turning_point_is_the_first_bad_step_after_the_divergence(said, first, turn):
    """Both paths begin with one `up`; first_bad is the first flag anywhere. Without one after it the pair turns nowhere, or,
    when params say so, at the end.
    """
    two = ladder(["up", "look", "break", "up", "up"])
    assert two.shared == 1
    assert first_bad(labels(said)) == first
    assert turning_point(two, labels(said), at_end=False, replayed=True) == turn
    assert turning_point(two, labels(said), at_end=True, replayed=True) == (4 if turn == NO_TURN else turn)


@pytest.mark.parametrize(
    ("bad", "said", "required", "off"),
    [
        (["up", "look", "break", "up"], None, 3, 3),
        (["up", "look", "jump"], None, 1, 2),
        (["up", "look", "jump"], "GGB", 1, 2),
        (["up", "look", "jump"], "GBB", 1, 1),
        (["up", "jump"], "GB", NOTHING_LEFT, 1),
        (["up", "jump"], None, NOTHING_LEFT, 1),
        (["jump"], "B", NOTHING_LEFT, 0),
    ],
)
def test_a_replayed_path_turns_before_the_step_that_ended_it(bad, said, required, off):
    """After it nothing can be said any more. Without labels, as direct_revision has it, a path turns at its end."""
    for replay, turn in ((True, required), (False, off)):
        assert turning_point(ladder(bad), said and labels(said), at_end=False, replayed=replay) == turn


@pytest.mark.parametrize(
    ("bad", "said", "turn"),
    [
        (["up", "look", SORRY, "look"], "GGBG", 1),
        (["up", "look", SORRY], None, 1),
        (["up", SORRY, "look", "look"], "GBGG", NOTHING_LEFT),
        (["up", "look", SORRY, "jump"], "GGGB", 1),
    ],
)
def test_a_reflection_does_not_follow_on_another(bad, said, turn):
    """The second would be no reflection to those who read turns: the path turns before the first."""
    assert turning_point(ladder(bad), said and labels(said), at_end=False, replayed=True) == turn


def replay(two, turn, environment, task, alpha=0.5, said=SAID, settings=GAP, first=None):
    with environment.episode() as episode:
        first = first or episode.reset(task)
    return replayed(
        two,
        turn,
        said,
        environment=environment,
        several=Several.LAST,
        task=task,
        first=first,
        alpha=alpha,
        settings=settings,
    )


@pytest.mark.trap(39)
def test_what_is_stored_is_what_the_environment_answers():
    """The good path's `inventory` was answered without the bad one's flint; after the bad one it is answered with it."""
    environment = TextCraft(distractors=0)
    two = pair(environment, STEEL, [GET, FLINT, FLINT], [GET, INGOT, "inventory", FLINT, MADE])
    one = replay(two, 1, environment, STEEL)
    seen = [turn.observation for turn in one.turns if turn.action == "inventory"]
    assert two.good.turns[2].observation == "Inventory: [iron ingot] (1) "
    assert seen == ["Inventory: [flint] (1) [iron ingot] (1) "]
    said = [f"Action: {action}" for action in (GET, FLINT)], [f"Action: {a}" for a in (INGOT, "inventory", FLINT, MADE)]
    assert [turn.text for turn in one.turns] == [*said[0], SAID, *said[1]]
    assert (one.turn, one.reflection, one.replayed, one.reward, one.dropped) == (1, 2, True, 1.0, None)
    text = textual(two, 1, SAID)
    assert [turn.text for turn in text.turns] == [turn.text for turn in one.turns]
    assert [turn.observation for turn in text.turns][4] == two.good.turns[2].observation
    assert (text.turn, text.reflection, text.replayed, text.reward, text.dropped) == (1, 2, False, 1.0, None)


ACTIONS = st.sampled_from([GET, INGOT, FLINT, MADE, "inventory", "craft 1 stone", SORRY])


@given(st.lists(ACTIONS, max_size=3), st.lists(ACTIONS, min_size=1, max_size=5), st.lists(ACTIONS, max_size=3), st.data())
def test_a_splice_is_an_episode_that_can_be_played_again(start, bad, good, data):
    """Its actions, taken in a fresh episode, are answered as it says: all of them, and nothing else is a step."""
    environment = TextCraft(distractors=0)
    bad, good = (
        [step for step in [*start, *bad] if step != MADE],
        [*[step for step in [*start, *good] if step != MADE], MADE],
    )
    if not bad or bad == good[: len(bad)]:
        return
    two = pair(environment, STEEL, bad, good)
    turn = turning_point(two, None, at_end=False, replayed=True)
    if turn == NOTHING_LEFT:
        return
    turn = data.draw(st.integers(two.shared, turn))
    if two.bad.turns[turn].kind == Kind.REFLECTION:
        return
    said = reflection(data.draw(st.integers(0, 99)))
    one = replay(two, turn, environment, STEEL, said=said)
    actions = [(step.action, step.observation, step.reward, step.terminal) for step in one.turns if step.kind == Kind.ACTION]
    with environment.episode() as episode:
        episode.replay(STEEL, [action for action, *_ in actions])
        assert [(step.action, step.observation, step.reward, step.terminal) for step in episode.steps] == actions
        assert one.reward == episode.reward
    assert one.turns[: turn + 1] == two.bad.turns[: turn + 1]
    said_turn = one.turns[one.reflection]
    assert (said_turn.text, said_turn.kind, said_turn.action, said_turn.observation) == (
        said,
        Kind.REFLECTION,
        "",
        ACKNOWLEDGED,
    )
    assert one.turns[one.reflection + 1].kind != Kind.REFLECTION


def test_a_reflection_is_no_step_of_the_environment():
    environment = Ladder()
    two = pair(environment, "ladder", ["up", "look", "look"], ["up", SORRY, "up", "up", "up"])
    environment.steps = 0
    one = replay(two, 2, environment, "ladder")
    assert [turn.action for turn in one.turns] == ["up", "look", "look", "", "up", "up", "up"]
    assert environment.steps == 6
    assert [turn.text for turn in one.turns if turn.kind == Kind.REFLECTION] == [SAID]  # the good path's own is left out
    assert [turn.reward for turn in one.turns] == [0.25, 0.25, 0.25, 0.25, 0.5, 0.75, 1.0]
    assert [turn.text for turn in textual(two, 2, SAID).turns] == [turn.text for turn in one.turns]


def test_a_splice_ends_where_the_episode_ends():
    """The good path tried to make the goal too early; after the bad one that already works, and what follows is left out."""
    environment = TextCraft(distractors=0)
    two = pair(environment, STEEL, [GET, INGOT, FLINT, FLINT], [GET, MADE, INGOT, FLINT, MADE])
    one = replay(two, 2, environment, STEEL)
    assert [turn.action for turn in one.turns] == [GET, INGOT, FLINT, "", MADE]
    assert one.turns[-1].terminal
    assert (one.reward, one.dropped) == (1.0, None)


@pytest.mark.parametrize(
    ("bad", "turn", "alpha", "reward", "dropped"),
    [
        (["look", "look"], 0, 1.0, 1.0, None),
        (["break", "up"], 0, 0.5, 0.0, NOT_GOOD),
        (["up", "up", "break", "look"], 2, 0.5, 0.5, NOT_GOOD),  # alpha is not over itself
        (["up", "up", "break", "look"], 2, 0.4, 0.5, NOT_BETTER),
        (["up", "up", "up", "break"], 3, 0.7, 0.75, NOT_BETTER),
        (["up", "up", "up", "look"], 3, 1.0, 1.0, None),  # 1.0 - 0.75 is over 0.2
    ],
)
@pytest.mark.trap(37, 39)
def test_what_does_not_survive_says_why_and_keeps_its_turns(bad, turn, alpha, reward, dropped):
    """On a broken ladder the good actions lead nowhere: the final reward must be good, and beta over the bad path's."""
    one = replay(ladder(bad), turn, Ladder(), "ladder", alpha)
    assert (one.reward, one.dropped, one.replayed) == (reward, dropped, True)
    assert bool(one.message) == bool(dropped)
    assert len(one.turns) > turn + 2
    assert textual(ladder(bad), turn, SAID).dropped is None


def test_by_the_threshold_rule_a_good_splice_is_kept():
    """Beta then bounds the bad path's reward, and says nothing of a gap."""
    rule = Pairs(beta=0.5, beta_rule="threshold", max_per_tree=4)
    assert replay(ladder(["up", "up", "break", "up"]), 2, Ladder(), "ladder", 0.4, settings=rule).dropped is None


def test_an_environment_that_answers_differently_loses_the_pair():
    """By reason, and the task and the step are named; so it is with one that fails, and both are no error by themselves."""
    two, environment = ladder(["up", "look", "look"]), Ladder()
    environment.drift = "!"
    one = replay(two, 1, environment, "ladder")
    assert (one.dropped, one.turn, one.reflection, one.turns, one.replayed) == ("replay", None, None, (), False)
    assert "ladder: turn 1 of 2, 'up', read 'Rung 1' when recorded and 'Rung 1!' now" in one.message
    assert replay(two, 1, Ladder(), "ladder", first="Another ladder.").dropped == "replay"
    environment.drift, environment.faulty = "", "up"
    faulty = replay(two, 1, environment, "ladder")
    assert faulty.dropped == "fault"
    assert faulty.dropped in LOST
