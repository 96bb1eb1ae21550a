"""What stages/prepare.py makes of imported sources. Rows are our own, in the documented columns."""

import json
from types import SimpleNamespace

import pytest

from moat import layout, params
from moat.decontamination import ContaminatedError
from moat.machine import Machine
from moat.page import Element, Page
from moat.params import Params
from moat.schemas.demos import DEMOS
from moat.schemas.passages import PASSAGES
from moat.schemas.sft import SFT
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.tables import metadata
from moat.turns import STOP

WORDS = "one two three four five six"  # with the `add` that follows, all questions share a run of seven words


def row(number, **changes):
    """A sum of two turns: number + 1, doubled."""
    made = {"text": f"{WORDS} add {number}?", "gold_answer": str(2 * (number + 1)), "domain": "maths", "metric": "number"}
    made |= {"subgoals": ["Add", "Double"], "actions": [f"R1 = Calculator({number} + 1)", "R2 = Calculator(R1 * 2)"]}
    return made | changes


@pytest.fixture
def prepare(tmp_path, monkeypatch, root, stage_module, capsys):
    """Runs the stage on sources, each (rows to train on, rows to evaluate on): all are used, n_demos of a source's shown."""
    monkeypatch.chdir(tmp_path)
    layout.SOURCES.mkdir(parents=True)
    plain = params.parse(params.read_text(root / "params.yaml"), root / "params.yaml")

    def run(planning="onetime", n_demos=0, **sources):
        given = {}
        for name, parts in sources.items():
            origins, shown = [], min(n_demos, len(parts[0]))
            for split, rows in zip(("train", "eval"), parts, strict=True):
                (layout.SOURCES / f"{name}-{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
                origins.append({"importer": "columns", "files": [f"{name}-{split}.jsonl"]} if rows else None)
            given[name] = {"kind": "imported", "trained": bool(parts[0]), "train": origins[0], "eval": origins[1]} | {
                "draw": "dev",
                "n_train": len({one.get("episode", one["text"]) for one in parts[0]}) - shown,
                "n_demos": shown,
                "n_eval": len(parts[1]),
            }
        changed = Params.model_validate(plain | {"planning": planning, "prepare": {"sources": given}})
        stage_module("prepare").run(Stage("prepare", changed, Machine(device="cpu"), tmp_path))
        tables = {"train": TASKS.read(layout.TRAIN_TASKS), "eval": TASKS.read(layout.EVAL_TASKS)}
        tables |= {role: DEMOS.read(layout.demos(role)) for role in ("planner", "grounder")}
        return SimpleNamespace(said=capsys.readouterr().out, **tables)

    return run


def test_gold_that_fails_is_dropped_and_counted(prepare):
    """One of three to train on, one of two to evaluate on; the tables tell of it too."""
    wrong = {"gold_answer": "-1"}
    made = prepare(own=([row(1), row(2), row(3, **wrong)], [row(11), row(12, **wrong)]))
    assert (len(made.train), len(made.eval)) == (2, 1)
    assert "5 in, 3 kept · 2 dropped: gold actions miss the gold answer" in made.said
    for path, kept in ((layout.TRAIN_TASKS, 2), (layout.EVAL_TASKS, 1)):
        counts = {"rows_in": kept + 1, "kept": kept, "dropped": {"gold actions miss the gold answer": 1}}
        assert metadata(path)["facts"]["counts"] == counts


def test_gold_that_fails_is_not_demonstrated(prepare):
    """Six rows, one wrong, one without an answer (which cannot be checked): five are shown to each role, and it is told."""
    rows = [row(1), row(2), row(3), row(4), row(5, gold_answer="-1"), row(6, gold_answer=None)]
    made = prepare(n_demos=6, own=(rows, [row(11)]))
    for table in (made.planner, made.grounder):
        assert sorted(table["text"]) == [f"{WORDS} add {number}?" for number in (1, 2, 3, 4, 6)]
    assert "1 not demonstrated: gold actions miss the gold answer (planner)" in made.said


def test_a_task_that_is_evaluated_on_needs_no_gold_actions(prepare):
    bare = {"subgoals": None, "actions": None}
    made = prepare(own=([row(1)], [row(11, **bare)]))
    assert made.eval["gold_actions"].to_list() == [""]


def test_what_needs_a_corpus_is_kept_for_check_gold(prepare):
    """QA cannot be run yet; its passages are written for the index."""
    qa = {"domain": "qa", "metric": "exact_match", "gold_answer": "x", "passages": [{"title": "Owl", "text": "It hunts."}]}
    qa |= {"subgoals": ["Look it up"], "actions": ["R1 = KnowledgeQuery(Owl); R2 = QA([R1], Question: Who?)"]}
    made = prepare(own=([row(1, **qa)], [row(11)]))
    assert len(made.train) == 1
    assert PASSAGES.read(layout.PASSAGES).select("source", "title", "text").rows() == [("own", "Owl", "It hunts.")]


def test_near_repeats_are_warned_of_and_kept(prepare):
    """Eight words in a row shared by a question to train on and one to evaluate on; seven are not worth a word."""
    seven = prepare(own=([row(1), row(2)], [row(11)]))
    assert "warning" not in seven.said
    assert len(seven.eval) == 1
    eight = prepare(own=([row(1), row(2)], [row(11, text=f"Say {WORDS} add 2 and 9, doubled?"), row(12)]))
    assert "warning 1 evaluation tasks share eight words in a row with a task that is trained on" in eight.said
    assert f"('{WORDS} add 2')" in eight.said
    assert len(eight.eval) == 2


def test_demonstrations_are_looked_at_for_near_repeats_too(prepare):
    made = prepare(n_demos=1, own=([row(1)], [row(11, text=f"Say {WORDS} add 1 and 9, doubled?")]))
    assert len(made.train) == 0
    assert "warning 1 evaluation tasks share eight words" in made.said


@pytest.mark.parametrize("n_demos", [0, 1], ids=["trained on", "demonstrated"])
def test_contamination_stops_the_stage(prepare, n_demos):
    """The same question, but for case and spacing, in another source's evaluation: no table is left."""
    again = row(11, text=f"  {WORDS.upper()} add   1?")
    with pytest.raises(ContaminatedError, match="1 questions stand in train and eval"):
        prepare(n_demos=n_demos, own=([row(1)], []), other=([], [again]))
    assert not layout.TRAIN_TASKS.exists()


def test_under_iterative_planning_a_training_task_is_a_turn_and_an_evaluated_one_is_whole(prepare):
    """Two turns of each task; the demonstrated one has a decision to stop more for the planner."""
    made = prepare("iterative", n_demos=1, own=([row(1), row(2), row(3)], [row(11)]))
    assert len(made.train) == 4
    assert sorted(made.train["turn"]) == [0, 0, 1, 1]
    assert made.eval["turn"].to_list() == [None]
    assert [turn["result"] for turn in made.eval["turns"][0]] == ["12", "24"]
    assert sorted(made.planner["turn"]) == [0, 1, 2]
    assert made.planner.filter(made.planner["turn"] == 2)["subgoals"].to_list() == [STOP]
    assert sorted(made.grounder["turn"]) == [0, 1]


def test_under_iterative_planning_tasks_without_turns_are_counted(prepare):
    """Two subgoals, and actions in one text: it cannot be told which belong to which."""
    whole = {"actions": "R1 = Calculator(1 + 1); R2 = Calculator(R1 * 2)"}
    made = prepare("iterative", own=([row(1, **whole), row(2)], [row(11)]))
    assert len(made.train) == 2
    assert "1 not trained on: which actions belong to which subgoal is not known" in made.said


def test_gold_turns_that_fail_are_counted(prepare):
    broken = {"actions": ["R1 = Calculator(1 + R9)", "R2 = Calculator(R1 * 2)"]}
    made = prepare("iterative", own=([row(1, **broken), row(2)], [row(11)]))
    assert len(made.train) == 2
    assert "1 the gold actions of a turn fail" in made.said


@pytest.mark.parametrize("planning", ["onetime", "iterative"])
def test_a_step_is_one_training_task_under_either_planning(prepare, planning):
    """Two steps of an episode, each with its own page: two tasks, the second after the first."""
    page = Page((Element("7", "button", {}, "Book"), Element("8", "input", {"placeholder": "city"}))).to_json()
    ways = ["R1 = TYPE(Env, QUERY: city, TEXT: Rome)", "R2 = CLICK(R1, QUERY: Book)"]
    golds = ["TYPE [8] Rome", "CLICK [7]"]

    def step(number):
        made = {"text": "Book a room", "domain": "web", "metric": "web_step", "episode": "e", "step": True, "context": page}
        asked = {"subgoals": ["Type Rome", "Click Book"][:number], "actions": ways[:number]}
        return made | asked | {"gold_answer": golds[number - 1]}

    made = prepare(planning, own=([step(1), step(2)], [row(11)]))
    found = made.train.sort("turn").select("turn", "gold_actions", "gold_answer").rows()
    assert found == [(0, ways[0], golds[0]), (1, ways[1], golds[1])]


def test_nothing_has_been_trained_on_before_the_first_round(prepare):
    prepare(own=([row(1)], [row(11)]))
    assert len(SFT.read(layout.table("pool", "0"))) == 0
