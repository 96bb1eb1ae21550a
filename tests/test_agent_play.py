"""What an actor's turn is, and a task that is played: moat/agent_r/{turns,play,worlds}.py."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.agent_r.params import AgentGymWorld, AgentParams, TextCraftWorld, good
from moat.agent_r.play import Play, Turn
from moat.agent_r.turns import ACKNOWLEDGED, NOT_READ, Kind, normal, read, reflection
from moat.agent_r.worlds import INSTRUCTIONS, candidates, open_world
from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.textcraft import TextCraft
from moat.machine import Machine
from moat.params import ParamsError, load_as
from moat.react import Several

SAID = reflection("a test")
TASK, GOLD = "textcraft/crossbow", "Action: get 2 string"
CRAFT = TextCraftWorld(
    kind="textcraft", optional=False, depths=[1, 2], groups=False, distractors=3, max_gold=7, n_demos=0, n_train=1, n_eval=1,
    draw="dev",
)  # fmt: skip


@pytest.fixture(scope="module")
def world():
    with TextCraft(distractors=3) as made:
        yield made


@pytest.fixture
def play(world):
    with Play(world, Several.LAST, 8) as made:
        made.begin(TASK)
        yield made


# --- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "after", "kind", "action"),
    [
        ("Thought: planks first.\nAction: get 1 logs", None, Kind.ACTION, "get 1 logs"),
        ("Action: a\nAction: b", Kind.ACTION, Kind.ACTION, "b"),
        (f" {SAID}\n", Kind.ACTION, Kind.REFLECTION, None),
        (SAID, Kind.REFLECTION, Kind.UNREADABLE, None),
        (f"{SAID}\nAction: inventory", Kind.ACTION, Kind.ACTION, "inventory"),
        ("Thought: I made another kind of mistake.", None, Kind.UNREADABLE, None),
        ("", None, Kind.UNREADABLE, None),
    ],
)
def test_a_turn_is_an_action_a_reflection_or_neither(text, after, kind, action):
    said = read(text, Several.LAST, after)
    assert (said.kind, said.action) == (kind, action)
    assert said.answer == {Kind.ACTION: None, Kind.REFLECTION: ACKNOWLEDGED, Kind.UNREADABLE: NOT_READ}[kind]


def test_several_actions_may_be_refused():
    assert read("Action: a\nAction: b", Several.REFUSE, None).kind is Kind.UNREADABLE


@pytest.mark.trap(44)
@given(st.text("aB \t", min_size=1))
def test_actions_are_told_apart_without_case_and_spacing(text):
    assert normal(text) == normal(f"  {text.upper()} ".replace(" ", "  "))
    assert normal("get 2 string") != normal("get 3 string")


@pytest.mark.trap(37)
@pytest.mark.parametrize(
    ("reward", "alpha", "found"), [(0.5, 0.5, False), (0.51, 0.5, True), (1, 1.0, True), (0.99, 1.0, False)]
)
def test_alpha_is_exclusive_below_1_and_inclusive_there(reward, alpha, found):
    assert good(reward, alpha) is found


# --- plays ------------------------------------------------------------------------------------------------------------


def test_reflections_and_unreadable_turns_take_no_step_and_count_as_turns(play):
    for text in (SAID, SAID, "mumble"):
        turn = play.say(text)
        assert (turn.action, turn.reward, turn.refused, turn.repeated) == ("", 0.0, False, False)
    assert (play.taken, len(play.turns)) == (0, 3)
    assert [turn.kind for turn in play.turns] == ["reflection", "unreadable", "unreadable"]
    assert play.say(GOLD).observation == "Got 2 string"
    assert (play.taken, len(play.turns)) == (1, 4)


def test_turns_are_bounded(play):
    for _ in range(8):
        assert not play.over
        play.say("mumble")
    assert play.over
    assert not play.terminal
    with pytest.raises(ValueError, match="over after 8 turns"):
        play.say(GOLD)


def test_an_action_is_a_repeat_in_the_same_state_alone(play):
    """`get` changes what is carried; what is refused changes nothing."""
    found = [play.say(text) for text in (GOLD, GOLD, "Action: fly", SAID, "Action: fly", "Action: inventory", GOLD)]
    assert [turn.repeated for turn in found] == [False, False, False, False, True, False, False]
    assert [turn.refused for turn in found] == [False, False, True, False, True, False, False]


def test_a_fork_goes_its_own_way(play):
    play.say(GOLD)
    with play.fork() as other:
        other.say("Action: get 3 string")
        assert (len(play.turns), len(other.turns), other.taken) == (1, 2, 1)
        assert other.say("Action: inventory").observation != play.say("Action: inventory").observation


@pytest.mark.trap(39)
def test_a_recorded_state_is_brought_back_and_compared(world, play):
    turns = [play.say(text) for text in (GOLD, SAID, "Action: fly", "Action: get 3 string")]
    with Play(world, Several.LAST, 20) as other:
        other.bring_back(TASK, play.first, [Turn.of(turn.row()) for turn in turns])
        assert other.turns == turns
        assert (other.taken, other.replayed) == (3, 3)
        assert other.say("Action: inventory") == play.say("Action: inventory")
        changed = dataclasses.replace(turns[3], observation="Got 4 string")
        with pytest.raises(EpisodeError, match=r"textcraft/crossbow: turn 4 of 4, 'get 3 string',.* read") as error:
            other.bring_back(TASK, play.first, [*turns[:3], changed])
        assert error.value.kind is EpisodeErrorKind.REPLAY
        with pytest.raises(EpisodeError, match="the first observation"):
            other.bring_back(TASK, play.first + "!", turns)


# --- worlds -----------------------------------------------------------------------------------------------------------


def test_goals_are_shared_out_and_drawn_by_name(world):
    """Training and evaluation share no goal; the same draw is the same order; another one is another."""
    train, tests = ([one.task for one in candidates(world, CRAFT, kind)] for kind in (False, True))
    assert not {*train} & {*tests}
    assert len(train) > 150
    assert len(tests) > 80
    assert train == [one.task for one in candidates(world, CRAFT, False)]
    assert train != [one.task for one in candidates(world, CRAFT.model_copy(update={"draw": "test"}), False)]


def test_goals_are_of_the_wanted_kind(world):
    for goal in candidates(world, CRAFT, False):
        assert goal.kind in ("depth 1", "depth 2")
        assert 2 <= len(goal.gold) <= 7
        assert not world.asks_groups(goal.task)
    loose = CRAFT.model_copy(update={"groups": True, "max_gold": 0, "depths": [4]})
    assert {goal.kind for goal in candidates(world, loose, False)} == {"depth 4"}


def test_a_server_is_wanted_by_name():
    served = AgentGymWorld(
        kind="agentgym", environment="webshop", first_train=0, first_eval=9, optional=False, n_demos=0, n_train=3, n_eval=3,
        max_gold=0, draw="",
    )  # fmt: skip
    with pytest.raises(ParamsError, match=r"servers\.webshop: missing; the environment shop"):
        open_world("shop", served, Machine())
    with open_world("shop", served, Machine(servers={"webshop": "http://127.0.0.1:1"})) as world:
        assert [goal.task for goal in candidates(world, served, False)] == [f"agentgym_webshop/{n}" for n in range(3)]
    with pytest.raises(ValueError, match="overlap"):
        AgentGymWorld.model_validate(served.model_dump() | {"first_eval": 2})
    assert {*INSTRUCTIONS} == {"textcraft", "textworld_express", "scienceworld", "webshop"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "bc"}, "train.updates"),
        ({"train_on": ["textcraft", "textcraft"]}, "train_on names an environment twice"),
        ({"train_on": ["nowhere"]}, "'nowhere' is none of the environments textcraft, cookingworld"),
        ({"rounds": {"2": {"prev": "1", "alpha": 0.5, "epochs": 1}}}, "reads round '1', which does not exist"),
        ({"rounds": {"1": {"prev": "0", "alpha": 1.5, "epochs": 1}}}, "rounds.1.alpha"),
        ({"environments": {}}, "environments"),
    ],
)
def test_settings_that_cannot_be_are_refused(root, tmp_path, changes, said):
    from moat.params import yaml

    raw = yaml().load((root / "agent_r" / "params.yaml").read_text(encoding="utf-8"))
    raw["train"]["updates"] = 0
    raw |= changes
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        yaml().dump(raw, file)
    with pytest.raises(ParamsError) as error:
        load_as(tmp_path / "params.yaml", AgentParams)
    assert said in str(error.value)
