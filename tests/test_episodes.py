"""Episodes of iterative planning, with scripted models (moat/episodes.py), and gold turns as rows (moat/tasks.py)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from moat.engines.base import FinishReason, Generation
from moat.episodes import Episode, planner, play, script
from moat.executor import Outcome
from moat.sources.base import Metric, Record, Turn
from moat.tasks import GoldError, demo_rows, task_row, turn_rows
from moat.tokens import Renderer, Role
from moat.toolbox import Goal, Toolbox
from moat.turns import KEEP, STOP, Done
from tests.rows import task

HOW = SimpleNamespace(temperature=0.0, top_p=1.0, max_new_tokens=64)
TASKS = {"sum": ("4 + 5", "9"), "long": ("1 + 1", "2"), "bad": ("1 / 0", "0")}


class Scripted:
    """A model that answers by a function of the prompt's text; counts what it was asked. None: the engine failed."""

    def __init__(self, tokenizer, say):
        self.tokenizer, self.say, self.asked = tokenizer, say, []

    def generate(self, prompts, seeds, decoding, advance):
        texts = [self.tokenizer.decode(prompt) for prompt in prompts]
        self.asked.append(texts)
        made = []
        for text in texts:
            said = self.say(text)
            ids = None if said is None else self.tokenizer(said, add_special_tokens=False).input_ids
            made.append(None if ids is None else Generation(ids, FinishReason.STOP, -1.0))
        return made


@pytest.fixture
def run(tokenizer):
    """Plays tasks (name -> gold answer) with a planner and a grounder given as functions of the prompt's text."""
    renderer = Renderer(tokenizer, "lumos")

    def go(golds, plan, act, max_turns=3):
        episodes = [Episode(f"task {name}.", Goal("arithmetic", gold)) for name, gold in golds.items()]
        plans, acts = Scripted(tokenizer, plan), Scripted(tokenizer, act)
        ended = []
        ask = planner(plans, renderer, episodes, HOW, lambda index, turn: 0)
        play(episodes, ask, acts, renderer, Toolbox(), HOW, max_turns, lambda index, turn: 0, ended.append)
        return SimpleNamespace(of=dict(zip(golds, episodes, strict=True)), plans=plans, acts=acts, ended=ended)

    return go


def two_steps(text):
    """Adds, then doubles, then stops."""
    return ["Subgoal 1: Add", f"{KEEP}Subgoal 2: Double", STOP][text.count("Should we stop")]


def acting(text):
    return "R2 = Calculator(R1 * 2)" if "Subgoal 2" in text else "R1 = Calculator(4 + 5)"


def test_an_episode_is_played_to_the_planners_stop(run):
    """Two turns, the second on the first one's result; the answer is the last result."""
    episode = run({"a": "18"}, two_steps, acting).of["a"]
    assert episode.turns == [
        Done("Subgoal 1: Add", "R1 = Calculator(4 + 5)", "9"),
        Done("Subgoal 2: Double", "R2 = Calculator(R1 * 2)", "18"),
    ]
    assert (episode.outcome, episode.answer) == (Outcome.REACHED, "18")


def test_another_answer_is_not_the_gold(run):
    assert run({"a": "9"}, two_steps, acting).of["a"].outcome is Outcome.NOT_REACHED


def test_the_models_are_told_what_happened(run):
    """The planner reads each result; the grounder reads its own earlier actions and their result."""
    done = run({"a": "18"}, two_steps, acting)
    assert "The executed result for Subgoal 1 is 9. Should we stop planning?" in done.plans.asked[1][0]
    assert "R1 = Calculator(4 + 5)" in done.acts.asked[1][0]
    assert "Subgoal to be grounded: Subgoal 2: Double" in done.acts.asked[1][0]
    assert KEEP not in done.acts.asked[1][0]


def test_what_has_ended_costs_nothing_more(run):
    """Three episodes that end after 1, 2 and 3 turns: batches of 3, 2, 1 for the grounder; each end is told once."""

    def plan(text):
        length = next(number for number in (1, 2, 3) if f"task {number}." in text)
        turn = text.count("Should we stop")
        return STOP if turn == length else f"{KEEP if turn else ''}Subgoal {turn + 1}: Add"

    done = run({"1": "9", "2": "9", "3": "9"}, plan, lambda text: "R1 = Calculator(4 + 5)")
    assert [len(batch) for batch in done.acts.asked if batch] == [3, 2, 1]
    assert [len(batch) for batch in done.plans.asked] == [3, 3, 2, 1]
    assert sum(done.ended) == 3
    assert all(episode.outcome is Outcome.REACHED for episode in done.of.values())


def test_a_planner_that_never_stops_meets_the_limit(run):
    """It is asked once more after the last turn it may take, to stop; the answer so far does not count."""
    done = run({"a": "9"}, lambda text: "Subgoal 1: Add", lambda text: "R1 = Calculator(4 + 5)", max_turns=2)
    episode = done.of["a"]
    assert (episode.outcome, episode.answer, len(episode.turns)) == (Outcome.TURN_LIMIT, None, 2)
    assert "2 turns" in episode.message
    assert len(done.plans.asked) == 3


def test_the_last_turn_may_be_the_stop(run):
    """A plan of exactly max_turns subgoals, then the stop, is whole."""
    assert run({"a": "18"}, two_steps, acting, max_turns=2).of["a"].outcome is Outcome.REACHED


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("plan", "act", "outcome", "turns"),
    [
        (lambda text: STOP, acting, Outcome.EMPTY, 0),
        (lambda text: "", acting, Outcome.EMPTY, 0),
        (lambda text: None, acting, Outcome.UNANSWERED, 0),
        (two_steps, lambda text: "R1 = Calculator(1 / 0)", Outcome.NO_RESULT, 1),
        (two_steps, lambda text: "nonsense", Outcome.SYNTAX, 1),
        (two_steps, lambda text: "R1 = Calculator(R9)", Outcome.UNDEFINED_REFERENCE, 1),
        (two_steps, lambda text: None, Outcome.UNANSWERED, 0),
    ],
    ids=["stops at once", "says nothing", "no planner", "division", "nonsense", "reference", "no grounder"],
)
def test_a_failure_ends_the_episode_and_is_no_answer(run, plan, act, outcome, turns):
    episode = run({"a": "no"}, plan, act).of["a"]
    assert (episode.outcome, episode.answer, len(episode.turns)) == (outcome, None, turns)


def test_a_script_is_played_as_a_planner_is(tokenizer):
    """The control: another task's subgoals, then the stop."""
    episodes = [Episode("task a.", Goal("arithmetic", "18")), Episode("task b.", Goal("arithmetic", "18"))]
    ask = script(episodes, [["Subgoal 1: Add", "Subgoal 2: Double"], []])
    assert ask([0, 1]) == ["Subgoal 1: Add", STOP]
    play(episodes, ask, Scripted(tokenizer, acting), Renderer(tokenizer, "lumos"), Toolbox(), HOW, 3, lambda *_: 0, print)
    assert [episode.outcome for episode in episodes] == [Outcome.REACHED, Outcome.EMPTY]


# --- gold turns as rows -----------------------------------------------------------------------------------------------

TWO = Record(
    number=1,
    text="Four and five, doubled?",
    domain="arithmetic",
    metric=Metric.NUMBER,
    gold_answer="18",
    subgoals="Subgoal 1: Add; Subgoal 2: Double",
    actions="R1 = Calculator(4 + 5); R2 = Calculator(R1 * 2)",
    turns=(Turn("Add", "R1 = Calculator(4 + 5)"), Turn("Double", "R2 = Calculator(R1 * 2)")),
)


def test_under_onetime_a_task_is_whole():
    row = task_row("s", True, TWO, "onetime", Toolbox())
    assert (row["turn"], row["turns"], row["gold_subgoals"], row["gold_answer"]) == (None, [], TWO.subgoals, "18")
    assert [d["subgoals"] for d in demo_rows(row, Role.PLANNER, None)] == [TWO.subgoals]


def test_a_step_is_not_taken_apart():
    """No step comes again under the steps after it; a task of which only the whole is known has no turn to train on."""
    turns = [{"subgoal": f"Subgoal {n}: Go", "actions": f"R{n} = CLICK(Env)", "result": "page"} for n in (1, 2)]
    step = task("a", turn=1, turns=turns)
    assert list(turn_rows(step)) == [step]
    assert list(turn_rows(task("b"))) == []


def test_under_iterative_a_training_task_is_a_turn():
    """Its history are the gold turns before it with their executed results, its gold that turn's own."""
    row = task_row("s", True, TWO, "iterative", Toolbox())
    assert [turn["result"] for turn in row["turns"]] == ["9", "18"]
    first, second = turn_rows(row)
    assert (first["turn"], first["gold_subgoals"], first["gold_answer"]) == (0, "Subgoal 1: Add", "9")
    assert (second["turn"], second["gold_subgoals"], second["gold_answer"]) == (1, f"{KEEP}Subgoal 2: Double", "18")
    assert second["gold_actions"] == "R2 = Calculator(R1 * 2)"
    assert len({row["task_id"], first["task_id"], second["task_id"]}) == 3
    assert {one["episode_id"] for one in (row, first, second)} == {row["task_id"]}


def test_every_role_is_shown_its_turns():
    """The planner's last demonstration is the decision to stop; the grounder has none for it."""
    row = task_row("s", True, TWO, "iterative", Toolbox())
    plans, acts = list(demo_rows(row, Role.PLANNER, "x")), list(demo_rows(row, Role.GROUNDER, "x"))
    assert [one["subgoals"] for one in plans] == ["Subgoal 1: Add", f"{KEEP}Subgoal 2: Double", STOP]
    assert [len(one["turns"]) for one in plans] == [0, 1, 2]
    assert [one["actions"] for one in acts] == [turn.actions for turn in TWO.turns]
    assert len({one["demo_id"] for one in plans}) == 3


def test_gold_turns_that_fail_are_refused():
    broken = replace(TWO, turns=(Turn("Add", "R1 = Calculator(R7)"),))
    with pytest.raises(GoldError, match="turn"):
        task_row("s", True, broken, "iterative", Toolbox())


def test_a_step_of_an_episode_is_one_row_with_its_history():
    """As Mind2Web's: asked under either planning with the gold steps before it; its page is of this step alone."""
    record = Record(
        number=1,
        text="Book a table",
        domain="web",
        metric=Metric.WEB_STEP,
        gold_answer="CLICK [7]",
        subgoals="Subgoal 2: Click Book",
        actions="R2 = CLICK(R1, QUERY: Book)",
        turns=(
            Turn("Type Rome", "R1 = TYPE(Env, QUERY: city, TEXT: Rome)"),
            Turn("Click Book", "R2 = CLICK(R1, QUERY: Book)"),
        ),
        episode="e",
        step=True,
        context='{"elements": []}',
    )
    for planning in ("onetime", "iterative"):
        row = task_row("s", True, record, planning, Toolbox())
        assert (row["turn"], row["gold_answer"], row["gold_actions"]) == (1, "CLICK [7]", record.actions)
        assert row["turns"][0]["subgoal"] == "Subgoal 1: Type Rome"
        assert row["episode_id"] != row["task_id"]
        assert [one["turn"] for one in demo_rows(row, Role.PLANNER, None)] == [1]
