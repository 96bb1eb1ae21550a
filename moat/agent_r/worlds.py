"""The environments of a run by name: opened as params.yaml and machine.yaml say, and the tasks that each gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from moat.agent_r.params import AgentGymWorld, AnyWorld, ScienceWorldWorld, TextCraftWorld, TextWorldExpressWorld
from moat.agentgym import Environment as Served
from moat.agentgym import Server
from moat.environments.agentgym import AgentGym
from moat.environments.base import Environment, EpisodeError, EpisodeErrorKind
from moat.environments.scienceworld import ScienceWorld
from moat.environments.textcraft import TextCraft
from moat.environments.textworld_express import TextWorldExpress
from moat.machine import MACHINE, Machine
from moat.params import ParamsError
from moat.seeds import seed_of

# What an actor is told before a task's first observation.
INSTRUCTIONS = {
    "textcraft": (
        "You gather and craft items. Your actions are: get N ITEM, for what no command makes; craft N ITEM using N ITEM, "
        "N ITEM, by one of the commands; inventory. Each turn, write a thought if you need one, then one line: Action: and "
        "the action.\n"
    ),
    "textworld_express": (
        "You play a text game. Actions are short commands, such as take knife, open fridge, look around, inventory. Each "
        "turn, write a thought if you need one, then one line: Action: and the action.\n"
    ),
    "scienceworld": (
        "You do a task in a house with workshops and a garden. Actions are: open OBJ, close OBJ, activate OBJ, deactivate "
        "OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ on OBJ, look around, look at OBJ, look in OBJ, read OBJ, move OBJ "
        "to OBJ, pick up OBJ, put down OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ, go to LOC, teleport to LOC, eat "
        "OBJ, flush OBJ, focus on OBJ, wait, task, inventory. Focus on an object only where the task asks for it. Each "
        "turn, write a thought, then one line: Action: and the action.\n"
    ),
    "webshop": (
        "You shop for what you are told to find. Actions are: search[words], and click[text] for anything that can be "
        "clicked on the page. Each turn, write a thought, then one line: Action: and the action.\n"
    ),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A task and its gold actions, None where none are known."""

    task: str
    kind: str  # depth 1, cookingworld, boil: what results are told apart by
    gold: tuple[str, ...] | None


def open_world(name: str, world: AnyWorld, machine: Machine) -> Environment:
    """An environment. Raises EpisodeError when it cannot run here, ParamsError when machine.yaml names no server."""
    match world:
        case TextCraftWorld():
            return TextCraft(distractors=world.distractors)
        case TextWorldExpressWorld():
            return TextWorldExpress()
        case ScienceWorldWorld():
            return ScienceWorld()
        case AgentGymWorld():
            if world.environment not in machine.servers:
                raise ParamsError(
                    f"{MACHINE}: servers.{world.environment}: missing; the environment {name} is played on AgentGym's "
                    "server, such as http://127.0.0.1:36005"
                )
            return AgentGym(Server(machine.servers[world.environment], Served(world.environment)))


@contextmanager
def opened(worlds: Mapping[str, AnyWorld], machine: Machine, names: set[str]) -> Iterator[dict[str, Environment]]:
    """The named environments, each open until the block ends. Raises as `open_world`."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(open_world(name, worlds[name], machine)) for name in sorted(names)}


def absent(error: EpisodeError, world: AnyWorld) -> bool:
    """Whether an environment is left out for want of Java or its package, as params.yaml allows."""
    return world.optional and error.kind is EpisodeErrorKind.MISSING


def instruction(world: AnyWorld) -> str:
    """What an actor is told before the first observation."""
    if isinstance(world, AgentGymWorld):
        return INSTRUCTIONS["scienceworld" if world.environment == "sciworld" else world.environment]
    return INSTRUCTIONS[world.kind]


def candidates(environment: Environment, world: AnyWorld, evaluation: bool) -> Iterator[Goal]:
    """A world's tasks for training or for evaluation, in the order in which they are drawn.

    TextCraft's goals are shared out by the draw: every third is of the evaluation, whatever else is asked for. Of the others
    the packages say which task is whose.
    """
    if isinstance(world, AgentGymWorld):
        assert isinstance(environment, AgentGym)
        first, count = (world.first_eval, world.n_eval) if evaluation else (world.first_train, world.n_train)
        for task in environment.tasks(range(first, first + count)):
            yield Goal(task, world.environment, None)
        return
    for task, kind in sorted(_named(environment, world, evaluation), key=lambda one: seed_of("draw", world.draw, one[0])):
        gold = environment.gold(task)
        if not world.max_gold or (gold is not None and len(gold) <= world.max_gold):
            yield Goal(task, kind, gold)


def _named(environment: Environment, world: AnyWorld, evaluation: bool) -> Iterator[tuple[str, str]]:
    match world:
        case TextCraftWorld():
            assert isinstance(environment, TextCraft)
            for task in environment.tasks():
                depth = environment.depth(task)
                plain = world.groups or not environment.asks_groups(task)
                if depth in world.depths and plain and (seed_of("fold", world.draw, task) % 3 == 0) is evaluation:
                    yield task, f"depth {depth}"
        case TextWorldExpressWorld():
            assert isinstance(environment, TextWorldExpress)
            for task in environment.tasks(world.game, "test" if evaluation else "train", world.settings):
                yield task, world.game
        case ScienceWorldWorld():
            assert isinstance(environment, ScienceWorld)
            for kind in world.kinds or environment.kinds:
                for task in environment.tasks(kind, "test" if evaluation else "train", world.simplifications):
                    yield task, kind
