"""What each kind of source gives: moat/drawing.py. Rows are our own, in the publisher's format; a server is a local one."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from moat.decontamination import normalised
from moat.drawing import draw
from moat.executor import Outcome
from moat.params import Imported, Shop, Stories, WebShop
from moat.sources.base import Metric, Passage, SourceError
from moat.splits import SplitError
from moat.tasks import task_row
from moat.tokens import Role
from moat.toolbox import Toolbox, goal_of
from moat.worlds.stories import STYLES
from tests.test_agentgym import WebShop as Server

SOURCES = Path("data/sources")


def svamp(number):
    """A row of SVAMP: N ribbons less one."""
    return {
        "ID": f"own-{number}",
        "Body": f"Lea has {number} ribbons and loses 1.",
        "Question": "How many are left?",
        "Equation": f"( {number}.0 - 1.0 )",
        "Answer": number - 1,
    }


class Progress:
    """Keeps each bar's label, total and what it was told."""

    def __init__(self):
        self.bars = {}

    @contextmanager
    def __call__(self, label, total):
        bar = self.bars.setdefault(label, [total])
        yield bar.append


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project's folder with its data/sources, in which a function writes a file of rows."""
    monkeypatch.chdir(tmp_path)
    SOURCES.mkdir(parents=True)

    def write(name, rows):
        (SOURCES / name).parent.mkdir(exist_ok=True)
        (SOURCES / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    return write


def imported(train, evaluation=None, **changes):
    """A source that is trained on; an origin is the name of a file of SVAMP's, or written out."""
    origins = [{"importer": "svamp", "files": [one]} if isinstance(one, str) else one for one in (train, evaluation)]
    numbers = {"n_train": 6, "n_demos": 8, "n_eval": 4}
    made = {"kind": "imported", "trained": True, "train": origins[0], "eval": origins[1], "draw": "dev"}
    return Imported(**(made | numbers | changes))


def drawn(source, name="own", seed=0, progress=None, webshop=""):
    return draw(name, source, seed, set(), progress or Progress(), webshop)


def texts(records):
    return {record.text for record in records}


def shown(found, role=Role.PLANNER):
    return texts(record for record, _ in found.demos[role])


# --- files --------------------------------------------------------------------------------------------------------------


def test_splits_of_one_file_are_disjoint_and_as_large_as_asked(place):
    """Twenty rows: 6 to train on, 8 demonstrated to both roles, 4 evaluated on; the other two are counted."""
    place("rows.jsonl", map(svamp, range(10, 30)))
    found = drawn(imported("rows.jsonl"))
    train, demos, evaluation = texts(found.train), shown(found), texts(found.evaluation)
    assert (len(train), len(demos), len(evaluation)) == (6, 8, 4)
    assert len(train | demos | evaluation) == 18
    assert found.demos[Role.PLANNER] == found.demos[Role.GROUNDER]
    assert found.dropped == {"not drawn": 2}


def test_the_same_source_draws_the_same_and_another_draw_name_or_seed_others(place):
    """The order of the file does not matter."""
    place("rows.jsonl", map(svamp, range(10, 110)))
    place("turned.jsonl", map(svamp, range(109, 9, -1)))
    first = texts(drawn(imported("rows.jsonl")).train)
    assert texts(drawn(imported("turned.jsonl")).train) == first
    others = [drawn(imported("rows.jsonl", draw="test")), drawn(imported("rows.jsonl"), seed=1)]
    others.append(drawn(imported("rows.jsonl"), name="another"))
    assert all(texts(other.train) != first for other in others)


def test_evaluation_has_its_own_origin(place):
    """A test file of four rows: all of them, and none of it is trained on or demonstrated."""
    place("train.jsonl", map(svamp, range(10, 24)))
    place("test/test.jsonl", map(svamp, range(50, 54)))
    found = drawn(imported("train.jsonl", "test/test.jsonl"))
    assert texts(found.evaluation) == {f"Lea has {n} ribbons and loses 1. How many are left?" for n in range(50, 54)}
    assert len(texts(found.train) | shown(found)) == 14
    assert found.dropped["not drawn"] == 0


def test_a_source_may_be_evaluated_on_alone(place):
    place("test.jsonl", map(svamp, range(10, 14)))
    found = drawn(imported(None, "test.jsonl", trained=False, n_train=0, n_demos=0))
    assert (found.train, found.demos[Role.PLANNER], len(found.evaluation)) == ([], [], 4)


def test_rows_that_give_no_task_are_counted_by_reason(place):
    """A row twice, and one whose equation is not its answer."""
    place("rows.jsonl", [*map(svamp, range(10, 28)), svamp(10), svamp(40) | {"Answer": 7}])
    found = drawn(imported("rows.jsonl"))
    assert found.dropped == {"the same task again": 1, "the equation is not the answer": 1}


def test_too_few_rows_are_an_error_and_not_smaller_splits(place):
    place("rows.jsonl", map(svamp, range(10, 27)))
    with pytest.raises(SplitError, match="lower n_train, n_demos or n_eval"):
        drawn(imported("rows.jsonl"))


def test_a_missing_file_is_named_with_where_to_put_it(place):
    place("train.jsonl", map(svamp, range(10, 24)))
    with pytest.raises(SourceError, match=r"source own: data/sources/test\.jsonl is missing: put the publisher's file"):
        drawn(imported("train.jsonl", "test.jsonl"))


def test_a_bar_counts_the_bytes_that_are_read(place):
    place("rows.jsonl", map(svamp, range(10, 30)))
    progress = Progress()
    drawn(imported("rows.jsonl"), progress=progress)
    total, *told = progress.bars["reading own"]
    assert total == sum(told) == (SOURCES / "rows.jsonl").stat().st_size


def test_passages_of_train_and_eval_are_the_tools_to_find(place):
    """Of all rows, drawn or not, each passage once."""

    def question(number):
        passages = [{"title": "Owl", "text": "It hunts."}, {"title": f"Page {number}", "text": "Text."}]
        return {"text": f"Who {number}?", "gold_answer": "x", "subgoals": "Find it", "actions": "R1 = A(x)"} | {
            "passages": passages
        }

    settings = {"importer": "columns", "settings": {"domain": "qa", "metric": "exact_match"}}
    place("train.jsonl", map(question, range(3)))
    place("test.jsonl", map(question, range(3, 5)))
    origins = [settings | {"files": [name]} for name in ("train.jsonl", "test.jsonl")]
    found = drawn(imported(*origins, n_train=1, n_demos=0, n_eval=1))
    assert found.passages[0] == Passage("Owl", "It hunts.")
    assert sorted(passage.title for passage in found.passages) == ["Owl", *(f"Page {number}" for number in range(5))]


def test_without_a_network_the_hub_is_refused_with_the_remedy(place):
    """HF_HUB_OFFLINE is set for all tests."""
    hub = {"importer": "svamp", "hub": ["ours/none"], "split": "train", "revisions": ["0" * 40]}
    with pytest.raises(SourceError, match=r"(?s)ours/none.*hf download ours/none.*data/sources.*`files`"):
        drawn(imported(hub))


# --- stories ------------------------------------------------------------------------------------------------------------


def stories(**changes):
    numbers = {"numbers": 1.0, "operation": 0.0, "vague": 0.0}
    made = {"kind": "stories", "family": "things", "trained": True, "n_train": 5, "n_demos": 20, "n_eval": 7, "draw": "dev"}
    made |= {"steps": [2], "distractors": [1.0], "planner_styles": numbers, "grounder_styles": numbers}
    return Stories(**(made | changes))


def test_stories_to_train_on_are_demonstrated_ones_and_those_evaluated_on_are_not():
    found = drawn(stories())
    assert (len(found.train), len(found.demos[Role.PLANNER]), len(found.evaluation)) == (5, 20, 7)
    assert texts(found.train) <= shown(found)
    assert shown(found).isdisjoint(texts(found.evaluation))


def test_each_role_is_shown_its_own_annotators_styles():
    """The same stories and actions; the planner's in one style, the grounder's in another."""
    vague = {"numbers": 0.0, "operation": 0.0, "vague": 1.0}
    found = drawn(stories(planner_styles=vague))
    assert {style for _, style in found.demos[Role.PLANNER]} == {"vague"} < set(STYLES)
    assert {style for _, style in found.demos[Role.GROUNDER]} == {"numbers"}
    pairs = zip(found.demos[Role.PLANNER], found.demos[Role.GROUNDER], strict=True)
    assert all(one.actions == other.actions and one.subgoals != other.subgoals for (one, _), (other, _) in pairs)


def test_a_storys_turns_are_its_plan_and_its_actions():
    (first, *_) = drawn(stories()).train
    assert "; ".join(turn.actions for turn in first.turns) == first.actions
    assert "; ".join(f"Subgoal {n}: {turn.subgoal}" for n, turn in enumerate(first.turns, 1)) == first.subgoals


# --- shops --------------------------------------------------------------------------------------------------------------


def shop(**changes):
    made = {"kind": "shop", "trained": True, "seed": 0, "families": 30, "n_train": 5, "n_demos": 6, "n_eval": 4}
    return Shop(**(made | changes))


def test_a_shops_goals_are_disjoint_and_their_gold_buys_what_is_wanted():
    found = drawn(shop())
    parts = [texts(found.train), shown(found), texts(found.evaluation)]
    assert [len(part) for part in parts] == [5, 6, 4]
    assert len({normalised(text) for part in parts for text in part}) == 15
    row = task_row("own", True, found.train[0], "onetime", Toolbox())
    assert Toolbox().outcome(row["gold_actions"], goal_of(row)) is Outcome.REACHED


def test_a_shop_without_enough_different_goals_is_told():
    """One family of four products, which make some 500 different goals."""
    with pytest.raises(SourceError, match="no 600 different goals: raise families"):
        drawn(shop(families=1, n_train=600, n_demos=0, n_eval=0))


# --- a WebShop server ---------------------------------------------------------------------------------------------------


def test_a_servers_tasks_are_asked_for_their_instructions():
    """Three tasks from number 2 on, evaluated on alone; the session is given back."""
    source = WebShop(kind="webshop", trained=False, first=2, n_train=0, n_demos=0, n_eval=3)
    with Server() as gym:
        found = drawn(source, webshop=gym.url)
        asked = [values["session_id"] for path, values in gym.requests if path == "/reset"]
        assert (asked, gym.requests[-1][0]) == ([2, 3, 4], "/close")
        instructions = [gym.session.shop.goal(number).instruction for number in (2, 3, 4)]
    assert [record.text for record in found.evaluation] == instructions
    assert [record.context for record in found.evaluation] == ['{"task":2}', '{"task":3}', '{"task":4}']
    assert {(record.metric, record.gold_answer, record.actions) for record in found.evaluation} == {(Metric.REWARD, "1", "")}
    assert (found.train, found.demos[Role.GROUNDER]) == ([], [])


def test_a_server_that_shows_no_instruction_is_told():
    source = WebShop(kind="webshop", trained=False, first=2, n_train=0, n_demos=0, n_eval=1)
    with Server() as gym:
        gym.reset = lambda env_idx, session_id: ["WebShop [SEP] Search", None]
        with pytest.raises(SourceError, match=r"source own: task 2 of .* shows no instruction"):
            drawn(source, webshop=gym.url)


def test_without_an_address_the_setting_is_named():
    with pytest.raises(SourceError, match=r"set `servers\.webshop` in machine\.yaml"):
        drawn(WebShop(kind="webshop", trained=False, first=0, n_train=0, n_demos=0, n_eval=1))
