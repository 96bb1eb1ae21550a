"""From sources to rows, and the importers by name: moat/importing.py and moat/sources/registry.py."""

import json

import pytest

from moat import importing
from moat.executor import MATHS_TOOLS
from moat.importing import corpus, gold_fault, identity, import_files, import_hub, task_rows
from moat.sources.base import Dropped, Metric, Passage, Record, SourceError, Turn
from moat.sources.registry import IMPORTERS

ADD = {
    "text": "What is 2 plus 3?",
    "gold_answer": 5,
    "domain": "maths",
    "metric": "number",
    "actions": "R1 = Calculator(2 + 3)",
}


def written(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_rows_in_are_rows_kept_and_rows_dropped_by_reason(tmp_path):
    done = import_files(
        "columns", [written(tmp_path, ADD, ADD, {**ADD, "text": ""}, {**ADD, "gold_answer": 6}, {**ADD, "text": "?"})]
    )
    assert [record.number for record in done.records] == [1, 4, 5]
    assert done.reasons == {importing.REPEATED: 1, "malformed row": 1}
    lines = done.summary().splitlines()
    assert lines[0] == "5 rows in, 3 kept, 2 dropped"
    assert "    row 2: as row 1: What is 2 plus 3?" in lines


def test_a_file_without_rows_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="no rows: is it the right file"):
        import_files("gsm8k", [written(tmp_path)])


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("gsm9k", {}, "no importer 'gsm9k'"),
        ("../files", {}, "no importer"),
        ("base", {}, "no function `read`"),
        ("columns", {"domian": "maths"}, "no setting 'domian'"),
        ("gsm8k", {"keep_all": "yes"}, "takes a bool"),
        ("lumos_maths_onetime", {}, "takes 2 files (plan, ground), not 1"),
    ],
)
def test_a_wrong_name_or_setting_is_told(tmp_path, name, settings, said):
    with pytest.raises(SourceError) as error:
        import_files(name, [written(tmp_path, ADD)], settings)
    assert said in str(error.value)


@pytest.mark.parametrize("name", IMPORTERS)
def test_every_importer_drops_rows_that_are_none(tmp_path, name):
    settings = {"split": "dev"} if name == "strategyqa" else {}
    path = written(tmp_path, None, [], "x", 5, {})
    done = import_files(name, [path] * len(IMPORTERS[name].files), settings)
    assert not done.records
    assert len(done.dropped) == 5 * len(IMPORTERS[name].files)


@pytest.mark.trap(34)
def test_the_dev_file_of_strategyqa_is_a_setting(tmp_path):
    dev = tmp_path / "dev.json"
    dev.write_text('[{"qid": "a"}]', encoding="utf-8")
    rows = [{"qid": qid, "question": f"Is {qid} so?", "answer": True} for qid in "ab"]
    done = import_files("strategyqa", [written(tmp_path, *rows)], {"dev": str(dev)})
    assert [record.split for record in done.records] == ["dev", "train"]


def test_the_hub_is_read_with_a_revision_for_each_data_set(monkeypatch):
    asked = []
    monkeypatch.setattr(importing, "hub_rows", lambda *how: asked.append(how) or iter([(1, ADD)]))
    done = import_hub("columns", ["owner/name"], None, "train", ["abc"])
    assert (len(done.records), asked) == (1, [("owner/name", None, "train", "abc", None)])
    with pytest.raises(SourceError, match="1 data sets"):
        import_hub("columns", ["owner/name"], None, "train", [])


# --- rows -------------------------------------------------------------------------------------------------------------


def record(**changes):
    made = {"number": 1, "text": "Q", "domain": "maths", "metric": Metric.NUMBER, "gold_answer": "5"} | changes
    return Record(**made)


def test_a_task_s_id_depends_on_its_content_and_not_on_its_place():
    def ids(*records):
        return [row["task_id"] for row in task_rows("s", records)]

    assert ids(record()) == ids(record(number=9, split="dev", subgoals="Subgoal 1: A"))
    assert ids(record()) != ids(record(gold_answer="6"))
    assert ids(record()) != [row["task_id"] for row in task_rows("t", [record()])]


def test_the_steps_of_an_episode_are_different_tasks():
    first, second = (record(step=True, episode="e", turns=(Turn("A", "R1 = R1"),) * length) for length in (1, 2))
    assert identity(first) != identity(second)
    assert identity(first) != identity(record(step=True, episode="f", turns=first.turns))


def test_a_row_holds_what_its_record_holds():
    made = record(subgoals="Subgoal 1: A", actions="R1 = B(1)", turns=(Turn("A", "R1 = B(1)"),), context="{}", split="dev")
    (row,) = task_rows("s", [made])
    assert row == {
        "task_id": row["task_id"],
        "episode_id": "",
        "step": False,
        "source": "s",
        "split": "dev",
        "domain": "maths",
        "metric": "number",
        "text": "Q",
        "gold_subgoals": "Subgoal 1: A",
        "gold_actions": "R1 = B(1)",
        "gold_answer": "5",
        "turns": [{"subgoal": "A", "actions": "R1 = B(1)"}],
        "context": "{}",
    }


def test_a_corpus_holds_each_passage_once():
    both = (Passage("T", "1"), Passage("T", "2"))
    assert corpus([record(passages=both), record(passages=both[::-1])]) == list(both)


# --- gold -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "answer", "fault"),
    [
        ("R1 = Calculator(2 + 3)", "5.0", None),
        ("R1 = Calculator(2 + 3)", "6", "they come to '5', the answer is '6'"),
        ("R1 = Calculator(2 / 0)", "5", "division"),
        ("R1 = Fly(up)", "5", "unknown_tool"),
        ("R1 = Calculator(2 + 3)", "", None),
        ("R1 = Fly(up)", "", "unknown_tool"),
        ("", "5", None),
    ],
)
def test_gold_that_does_not_pass_its_own_grader_is_told(actions, answer, fault):
    found = gold_fault(record(actions=actions, gold_answer=answer), MATHS_TOOLS)
    assert found is None if fault is None else fault in found


def test_gold_is_graded_as_its_task_is():
    made = record(actions="R1 = Calculator(2 + 3)", gold_answer="CLICK [5|6]")
    assert gold_fault(made, MATHS_TOOLS) is not None
    assert gold_fault(made, MATHS_TOOLS, right=lambda answer, gold: answer in gold) is None


def test_records_whose_gold_fails_are_dropped_by_reason():
    good, bad = record(actions="R1 = Calculator(5)"), record(number=2, actions="R1 = Calculator(6)")
    earlier = Dropped(3, "malformed row", "")
    kept, dropped, other = importing.check_gold([good, bad, earlier], lambda _: MATHS_TOOLS)
    assert (kept, other) == (good, earlier)
    assert (dropped.number, dropped.reason) == (2, importing.GOLD_FAILS)
