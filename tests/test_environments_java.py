"""The simulators in Java: moat/environments/textworld_express.py and scienceworld.py, and the process they run in."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.java import find_java
from moat.environments.scienceworld import ScienceWorld
from moat.environments.textworld_express import GAMES, TextWorldExpress

for package in ("py4j", "scienceworld", "textworld_express"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(
            f'{package} is not installed (`pip install -c constraints.txt -e ".[agent-r]"`)', allow_module_level=True
        )
try:
    find_java("tests")
except EpisodeError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def alive(pid):
    """Whether a process runs; one that has ended and is not yet waited for by its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lent(kind):
    """An environment for this module's tests, whose process must be gone afterwards."""
    with kind(horizon=1000) as environment:
        pid = environment.java.pid
        yield environment
    assert not alive(pid)


@pytest.fixture(scope="module")
def games():
    yield from lent(TextWorldExpress)


@pytest.fixture(scope="module")
def science():
    yield from lent(ScienceWorld)


def failure(kind, call, *arguments):
    with pytest.raises(EpisodeError) as caught:
        call(*arguments)
    assert caught.value.kind is kind
    return str(caught.value)


def played(environment, task, actions):
    with environment.episode() as episode:
        episode.replay(task, actions)
        return [episode.first, *episode.steps]


# --- TextWorldExpress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", GAMES)
def test_games_are_played_to_their_gold_end_and_replayed(games, game):
    for task in (games.tasks(game, "train")[3], games.tasks(game, "test")[1]):
        gold = games.gold(task)
        with games.episode() as episode, games.episode() as other:
            first = episode.replay(task, gold)
            assert first.split("\n\n")[0].strip()
            rewards = [step.reward for step in episode.steps]
            assert (rewards[-1], episode.steps[-1].terminal) == (1.0, True)
            assert not any(step.terminal for step in episode.steps[:-1])
            assert rewards == sorted(rewards)
            if game not in ("coin", "mapreader"):
                assert any(0 < reward < 1 for reward in rewards)
            other.rebuild(task, first, episode.steps)


def test_a_settings_game_is_another_task(games):
    task, plain = games.tasks("coin", "dev", {"numLocations": 2, "includeDoors": 0})[0], games.tasks("coin", "dev")[0]
    assert task == "textworld_express/coin?includeDoors=0,numLocations=2/dev/10000"
    assert "door" not in played(games, task, [])[0]
    assert "door" in played(games, plain, [])[0]
    assert len(games.gold(task)) <= 4


def test_the_act_that_fails_a_game_is_a_penalty_and_no_reward(games):
    """The problem of this task asks for 22 / 11, and there are 33 papayas."""
    task = "textworld_express/arithmetic/train/0"
    actions = ["take math problem", "read math problem", "take 33 papayas", "put 33 papayas in box"]
    steps = played(games, task, actions)[1:]
    assert "divide 22 by 11" in steps[1].observation
    assert [(step.reward_raw, step.reward, step.terminal) for step in steps[1:]] == [
        (0.5, 0.5, False),
        (0.5, 0.5, False),
        (-1.0, 0.0, True),
    ]


def test_an_action_that_a_game_does_not_know_is_answered_by_it(games):
    step = played(games, games.tasks("twc", "train")[0], ["dance ☃"])[1]
    assert (step.observation, step.reward, step.done) == ("Unknown action: I'm not sure what you mean.", 0.0, False)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("textworld_express/golf/train/5", "games are arithmetic"),
        ("textworld_express/coin/train/1000", "train 0–999"),
        ("textworld_express/coin/dev/5", "dev 10000–10999"),
        ("textworld_express/coin/train/05", "seeds"),
        ("textworld_express/coin/exam/5", "GAME/FOLD/SEED"),
        ("textworld_express/coin", "GAME/FOLD/SEED"),
        ("coin/train/5", "GAME/FOLD/SEED"),
        ("textworld_express/coin?/train/5", "sorted"),
        ("textworld_express/coin?numLocations=2,includeDoors=0/train/5", "sorted"),
        ("textworld_express/coin?numLocations=2,numLocations=3/train/5", "each stands once"),
        ("textworld_express/coin?numLocations=99/train/5", "less than or equal to 11"),
        ("textworld_express/coin?golf=1/train/5", "Unrecognized property name (golf)"),
    ],
)
def test_a_game_that_does_not_exist_is_an_error(games, task, said):
    with games.episode() as episode:
        for call in (episode.reset, games.gold):
            message = failure(EpisodeErrorKind.UNKNOWN_TASK, call, task)
            assert said in message
            assert message.startswith(f"{task}: there is no such task in textworld_express; ")


# --- ScienceWorld --------------------------------------------------------------------------------------------------

KINDS = ["find-plant", "chemistry-mix", "power-component"]


@pytest.mark.parametrize("kind", KINDS)
def test_experiments_are_played_to_their_gold_end_and_replayed(science, kind):
    task = science.tasks(kind, "test")[0]
    gold = science.gold(task)
    with science.episode() as episode, science.episode() as other:
        first = episode.replay(task, gold)
        assert first.startswith("Task Description:\nYour task is to")
        assert "\n\nThis " in first
        last = episode.steps[-1]
        assert (last.reward_raw, last.reward, last.terminal) == (100.0, 1.0, True)
        assert any(0 < step.reward < 1 for step in episode.steps)
        other.rebuild(task, first, episode.steps)


@pytest.mark.trap(42)
def test_a_step_asks_for_no_list_of_valid_actions(science, monkeypatch):
    client = science.java._gateway._gateway_client
    send, asked = client.send_command, []

    def listening(command, *arguments, **settings):
        asked.append(command)
        return send(command, *arguments, **settings)

    with science.episode() as episode:
        episode.reset("scienceworld/boil/0")
        monkeypatch.setattr(client, "send_command", listening)
        episode.step("open door to kitchen")
    assert [command.split("\n")[2] for command in asked if command.startswith("c\n")] == [
        "setSeed",
        "step",
        "getScore",
        "getCompleted",
    ]


def test_the_act_that_fails_an_experiment_is_a_hundred_below_and_no_reward(science):
    steps = played(science, "scienceworld/find-plant/0", ["look around", "focus on picture"])[1:]
    assert [(step.reward_raw, step.reward, step.terminal) for step in steps] == [(0.0, 0.0, False), (-100.0, 0.0, True)]


def test_the_variations_of_a_kind_are_shared_out_and_none_is_in_two_folds(science):
    folds = [science.tasks("boil", fold) for fold in ("train", "dev", "test")]
    assert list(map(len, folds)) == [14, 7, 9]
    assert len(set().union(*folds)) == science.kinds["boil"] == 30
    assert len(science.kinds) == 30
    with pytest.raises(ValueError, match="kinds are boil"):
        science.tasks("cook", "train")


def test_a_simplified_experiment_is_another_task(science):
    task = science.tasks("boil", "train", "easy")[0]
    assert task == "scienceworld/boil?easy/0"
    assert played(science, task, ["teleport to kitchen"])[1].observation == "You teleport to the kitchen."
    assert "No known action" in played(science, "scienceworld/boil/0", ["teleport to kitchen"])[1].observation


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("scienceworld/cook/0", "kinds are boil"),
        ("scienceworld/boil/30", "boil has the variations 0 to 29"),
        ("scienceworld/boil/-1", "0 to 29"),
        ("scienceworld/boil", "0 to 29"),
        ("scienceworld/boil/0/0", "0 to 29"),
        ("boil/0", "KIND/VARIATION"),
        ("scienceworld/boil?hard/0", "simplifications are"),
        ("scienceworld/boil?/0", "simplifications are"),
        ("scienceworld/boil?openDoors,easy/0", "in this order"),
    ],
)
def test_an_experiment_that_does_not_exist_is_an_error(science, task, said):
    with science.episode() as episode:
        for call in (episode.reset, science.gold):
            assert said in failure(EpisodeErrorKind.UNKNOWN_TASK, call, task)


# --- the process ---------------------------------------------------------------------------------------------------


def test_a_task_is_the_same_text_in_every_process_and_beside_others(games, science):
    """In fresh processes, in another order, each episode's steps between those of the others.

    With Java's own identity hashes the order of things in rooms differs, and a circuit may work or not; without a seed at
    each step bees fly elsewhere; the package's own paths of `coin` and `twc` are drawn anew each time.
    """
    chance = ["open door to greenhouse", "go to greenhouse", "open bee hive", *["wait1", "look around"] * 4]
    for kind, environment, tasks in (
        (TextWorldExpress, games, [task for game in GAMES for task in games.tasks(game, "train")[:2]]),
        (ScienceWorld, science, [f"scienceworld/{kind}/{number}" for kind in KINDS for number in (0, 1)]),
    ):
        paths = {task: environment.gold(task) for task in tasks}
        if kind is ScienceWorld:
            paths["scienceworld/mendelian-genetics-known-plant/0"] = tuple(chance)
        recorded = {task: played(environment, task, path) for task, path in paths.items()}
        with kind(horizon=1000) as fresh:
            episodes = {task: fresh.episode() for task in reversed(paths)}
            for task, episode in episodes.items():
                assert episode.reset(task) == recorded[task][0], task
            for number in range(max(map(len, paths.values()))):
                for task, episode in episodes.items():
                    if number < len(paths[task]):
                        assert episode.step(paths[task][number]) == recorded[task][number + 1], task
            if kind is TextWorldExpress:
                assert {task: fresh.gold(task) for task in reversed(tasks)} == paths


def test_a_failure_in_java_is_an_error_with_what_java_says(science):
    simulator = science.simulator()
    said = failure(
        EpisodeErrorKind.FAULT, science.java.call, lambda: simulator.load("boil", -5, "", False), "scienceworld/x"
    )
    assert said.startswith("scienceworld/x: Java failed: java.lang.")


def test_a_dead_process_is_an_error_and_closing_it_is_none():
    environment = TextWorldExpress()
    episode = environment.episode()
    episode.reset("textworld_express/simonsays/train/0")
    os.kill(environment.java.pid, signal.SIGKILL)
    assert "make the environment anew" in failure(EpisodeErrorKind.FAULT, episode.step, "wait")
    environment.close()
    environment.close()
    assert not alive(environment.java.pid)


def test_java_that_does_not_start_is_said_with_its_command():
    assert "-Xmxnonsense" in failure(EpisodeErrorKind.FAULT, lambda: TextWorldExpress(memory="nonsense"))


def test_java_does_not_outlive_a_killed_process(root):
    program = (
        "import os, signal\nfrom moat.environments.textworld_express import TextWorldExpress\n"
        "print(TextWorldExpress().java.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    run = subprocess.run([sys.executable, "-c", program], env=env, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while alive(int(run.stdout)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(int(run.stdout))
