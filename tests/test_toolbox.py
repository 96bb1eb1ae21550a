"""Actions run with the tools of their domain: moat/toolbox.py. A shop is the one in process, a reader a script."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from moat import corpus
from moat.executor import Outcome
from moat.page import Element, Page
from moat.sources.base import Metric, Passage
from moat.toolbox import Goal, Library, Toolbox, ToolboxError, goal_of
from moat.worlds.shop import Shop, ShopSession, record
from tests.rows import task

SUM = Goal("arithmetic", "18")
PAGE = Page((Element("1", "a", {}, "Home"), Element("2", "button", {}, "Search trains")))
STEP = Goal("web", "CLICK [2]", Metric.WEB_STEP, PAGE.to_json())


def turn(actions):
    return {"subgoal": "Subgoal 1: Do", "actions": actions, "result": ""}


# --- sums, and earlier turns --------------------------------------------------------------------------------------------


def test_actions_know_the_results_of_earlier_turns():
    after = replace(SUM, earlier=("R1 = Calculator(4 + 5)", "R2 = Calculator(R1 * 3)"))
    assert Toolbox().execute("R3 = Calculator(R2 - R1)", after).answer == "18"
    assert Toolbox().outcome("R3 = Calculator(R2 - R1)", after) is Outcome.REACHED
    assert Toolbox().outcome("R3 = Calculator(R2 - R1)", SUM) is Outcome.UNDEFINED_REFERENCE


def test_only_the_turns_own_results_are_given():
    """Earlier ones are known and not this turn's."""
    done = Toolbox().execute("R2 = Calculator(R1 * 2)", replace(SUM, earlier=("R1 = Calculator(4 + 5)",)))
    assert done.results == (("R2", "18"),)


def test_an_earlier_turn_that_fails_leaves_what_it_had():
    """Its first action ran, its second did not: the one result is known and the other is not."""
    after = replace(SUM, earlier=("R1 = Calculator(9); R2 = Calculator(1 / 0)",))
    assert Toolbox().outcome("R3 = Calculator(R1 * 2)", after) is Outcome.REACHED
    assert Toolbox().outcome("R3 = Calculator(R2 * 2)", after) is Outcome.UNDEFINED_REFERENCE


def test_a_rows_goal_is_after_the_turns_before_its_own():
    turns = [turn("R1 = Calculator(9)"), turn("R2 = Calculator(R1 * 2)"), turn("R3 = R2")]
    assert goal_of(task("t", turn=1, turns=turns)).earlier == ("R1 = Calculator(9)",)
    assert goal_of(task("t", turns=turns)).earlier == ()


def test_maths_has_more_tools_than_arithmetic():
    goal = Goal("maths", "3")
    assert Toolbox().outcome("R1 = SetEquation(2 * x = 6); R2 = SolveEquation(R1)", goal) is Outcome.REACHED
    assert Toolbox().outcome("R1 = SetEquation(2 * x = 6)", SUM) is Outcome.UNKNOWN_TOOL


# --- pages --------------------------------------------------------------------------------------------------------------


def test_a_step_is_taken_on_its_own_page_whatever_the_earlier_ones_were():
    """An earlier step's result is the page; its own page is not here, so it is not run."""
    after = replace(STEP, earlier=("R1 = TYPE(Env, QUERY: a box of another page, TEXT: x)",))
    assert Toolbox().outcome("R2 = CLICK(R1, QUERY: search trains)", after) is Outcome.REACHED
    assert Toolbox().outcome("R2 = CLICK(R1, QUERY: home)", after) is Outcome.NOT_REACHED
    assert Toolbox().outcome("R2 = CLICK(R1, QUERY: search trains)", STEP) is Outcome.UNDEFINED_REFERENCE


def test_the_ranker_that_is_given_decides():
    """One that prefers what stands later on the page."""
    later = Toolbox(rank=lambda query, texts: [float(place) for place, _ in enumerate(texts)])
    assert later.execute("R1 = CLICK(Env, QUERY: home)", STEP).answer == "CLICK [2]"


# --- shops --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bought():
    """A goal of the shop and the actions of its gold turns."""
    made = record(Shop(0, 250), 3)
    return Goal("webshop", "1", Metric.REWARD, made.context), [one.actions for one in made.turns]


@pytest.mark.trap(36)
def test_an_episode_is_replayed_up_to_its_turn(bought):
    """Each gold turn after those before it, in a session of its own; only the purchase gives the reward."""
    goal, turns = bought
    toolbox = Toolbox()
    ends = [toolbox.execute(own, replace(goal, earlier=tuple(turns[:at]))) for at, own in enumerate(turns)]
    assert [end.failure for end in ends] == [None] * len(turns)
    assert ends[-1].answer == "1"
    assert all(end.answer != "1" for end in ends[:-1])
    assert toolbox.outcome(turns[-1], replace(goal, earlier=tuple(turns[:-1]))) is Outcome.REACHED
    assert toolbox.outcome("; ".join(turns), goal) is Outcome.REACHED


@pytest.mark.trap(36)
@pytest.mark.parametrize("more", ["R9 = Click(R1, QUERY: Buy Now)", "R9 = Nothing(1)", "R9 = Click(R40, QUERY: x)"])
def test_what_is_tried_after_the_purchase_does_not_undo_it(bought, more):
    """The same actions and one that fails, at once or as a turn: the reward stays."""
    goal, turns = bought
    assert Toolbox().outcome(f"{'; '.join(turns)}; {more}", goal) is Outcome.REACHED
    after = Toolbox().execute(more, replace(goal, earlier=tuple(turns)))
    assert (after.answer, after.failure) == ("1", None)


@pytest.mark.trap(36)
def test_without_a_purchase_there_is_no_reward(bought):
    goal, turns = bought
    assert Toolbox().outcome("; ".join(turns[:-1]), goal) is not Outcome.REACHED


def test_a_servers_session_is_begun_at_the_task_and_given_back():
    """Also when the actions fail."""
    seen = []

    class Session(ShopSession):
        def reset(self, number):
            seen.append(f"reset {number}")
            return super().reset(number)

        def close(self):
            seen.append("closed")

    toolbox = Toolbox(shop=lambda: Session(Shop(0, 250)))
    goal = Goal("webshop", "1", Metric.REWARD, '{"task":3}')
    actions = record(Shop(0, 250), 3).actions
    assert toolbox.outcome(actions, goal) is Outcome.REACHED
    assert toolbox.outcome("nonsense", goal) is Outcome.SYNTAX
    assert seen == ["reset 3", "closed"] * 2


# --- questions to a reader ----------------------------------------------------------------------------------------------

PASSAGES = [Passage("Julius Caesar", "Caesar was born in Rome."), Passage("Rome", "Rome lies on the Tiber.")]
ANSWERS = {"Where was he born?": "Rome", "On what does Rome lie?": "the Tiber", "Who?": "Caesar", "When?": None}


class Reader:
    """Answers from ANSWERS; keeps every batch of questions."""

    def __init__(self):
        self.batches = []

    def answer_all(self, questions):
        self.batches.append([question.question for question in questions])
        return [ANSWERS[question.question] for question in questions]


def looked_up(*questions, about="Julius Caesar"):
    """Actions that ask about a subject, one question after the other; a question may name an earlier answer as R2."""
    asked = [f"R{number} = QA([R1], Question: {one})" for number, one in enumerate(questions, 2)]
    return "; ".join([f"R1 = KnowledgeQuery({about})", *asked])


@pytest.fixture
def reading():
    """A toolbox with a corpus and a reader, and the reader."""
    reader = Reader()
    return Toolbox(library=Library(corpus.build(PASSAGES), 10, 3, reader=reader)), reader


WHO = Goal("qa", "Caesar", Metric.EXACT_MATCH)


def test_open_questions_of_many_programs_are_asked_together_each_once(reading):
    """Three programs, two of them with the same question; a sum asks nothing. Answers come back in the programs' order."""
    toolbox, reader = reading
    programs = [(looked_up(one), WHO) for one in ("Who?", "Where was he born?", "Who?")]
    done = toolbox.run([*programs, ("R1 = Calculator(9 * 2)", SUM)])
    assert [one.answer for one in done] == ["Caesar", "Rome", "Caesar", "18"]
    assert reader.batches == [["Who?", "Where was he born?"]]


def test_questions_that_follow_from_answers_are_asked_in_waves(reading):
    """The second question holds the first one's answer: it is asked in the second batch, and nothing again."""
    toolbox, reader = reading
    programs = [looked_up("Where was he born?", "On what does R2 lie?"), looked_up("Who?")]
    done = toolbox.run([(text, WHO) for text in programs])
    assert [one.answer for one in done] == ["the Tiber", "Caesar"]
    assert reader.batches == [["Where was he born?", "Who?"], ["On what does Rome lie?"]]


def test_no_question_is_asked_again(reading):
    """By another call, or by a turn after the one that asked it."""
    toolbox, reader = reading
    toolbox.run([(looked_up("Where was he born?"), WHO)])
    after = replace(WHO, earlier=(looked_up("Where was he born?"),))
    assert toolbox.execute("R3 = QA([R1], Question: On what does R2 lie?)", after).answer == "the Tiber"
    assert Counter(one for batch in reader.batches for one in batch).most_common(1)[0][1] == 1


@pytest.mark.trap(33)
def test_a_question_without_an_answer_is_a_failure_and_is_asked_once(reading):
    toolbox, reader = reading
    for _ in range(2):
        assert toolbox.outcome(looked_up("When?"), WHO) is Outcome.NO_RESULT
    assert reader.batches == [["When?"]]


@pytest.mark.trap(33)
def test_without_a_reader_a_question_has_no_result():
    toolbox = Toolbox(library=Library(corpus.build(PASSAGES), 10, 3))
    done = toolbox.execute(looked_up("Who?"), WHO)
    assert (done.answer, "tools.qa.reader is empty" in done.message) == (None, True)


# --- what cannot be run -------------------------------------------------------------------------------------------------

SHOP = {"seed": 0, "families": 250, "goal": 3}
CANNOT = [
    (Goal("cooking", "1"), "domain 'cooking'"),
    (Goal("qa", "1"), "dvc repro index"),
    (Goal("web", "CLICK [1]", Metric.WEB_STEP, ""), "its page"),
    (Goal("web", "CLICK [1]", Metric.WEB_STEP, '{"elements": [{"id": ""}]}'), "its page"),
    (Goal("webshop", "1", Metric.REWARD, ""), "is a JSON object"),
    (Goal("webshop", "1", Metric.REWARD, "[3]"), "is a JSON object"),
    (Goal("webshop", "1", Metric.REWARD, "{}"), "names its `shop` or `task`"),
    (Goal("webshop", "1", Metric.REWARD, '{"task": "3"}'), "names its `shop` or `task`"),
    (Goal("webshop", "1", Metric.REWARD, '{"task": 3}'), "set `servers.webshop` in machine.yaml"),
    (Goal("webshop", "1", Metric.REWARD, '{"shop": 3}'), "no place in the shop"),
    (Goal("webshop", "1", Metric.REWARD, json.dumps({"shop": SHOP | {"goal": "3"}})), "no place in the shop"),
]


@pytest.mark.parametrize(("goal", "said"), CANNOT, ids=[f"{goal.domain} {said}" for goal, said in CANNOT])
def test_a_goal_that_cannot_be_run_is_told(goal, said):
    with pytest.raises(ToolboxError) as error:
        Toolbox().execute("R1 = Calculator(1)", goal)
    assert said in str(error.value)


def test_what_can_be_run_is_known():
    bare = Toolbox(rank=None)
    full = Toolbox(library=Library(corpus.build(PASSAGES), 10, 3), shop=lambda: ShopSession(Shop(0, 250)))
    inside = Goal("webshop", "1", Metric.REWARD, json.dumps({"shop": SHOP}))
    server = Goal("webshop", "1", Metric.REWARD, '{"task": 3}')
    goals = [SUM, Goal("maths", "1"), inside, STEP, WHO, server, Goal("cooking", "1")]
    assert [bare.knows(goal) for goal in goals] == [True, True, True, False, False, False, False]
    assert [full.knows(goal) for goal in goals] == [True, True, True, True, True, True, False]
