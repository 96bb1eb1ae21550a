"""From sources to rows, and the importers by name: moat/importing.py and moat/sources/registry.py."""

import json

import pytest

from moat import importing
from moat.importing import corpus, identity, import_files, import_hub
from moat.sources.base import Metric, Passage, Record, SourceError, Turn
from moat.sources.registry import IMPORTERS
from moat.tasks import task_row
from moat.toolbox import Toolbox

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


def test_a_text_that_no_table_can_hold_is_a_dropped_row(tmp_path):
    """JSON spells half of a surrogate pair as \\ud800; Parquet and terminals hold UTF-8, which has none."""
    half = {**ADD, "text": "How many \ud800?"}
    passage = {**ADD, "text": "And now?", "passages": [{"title": "t", "text": "\udfff"}]}
    done = import_files("columns", [written(tmp_path, half, ADD, passage)])
    assert [record.number for record in done.records] == [2]
    assert done.reasons == {importing.UNWRITABLE: 2}
    assert "row 1: '\\ud800' in: How many \\ud800?" in done.summary().encode().decode()


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


def row(source="s", **changes):
    return task_row(source, True, record(**changes), "onetime", Toolbox())


def test_a_task_s_id_depends_on_its_content_and_not_on_its_place():
    assert row()["task_id"] == row(number=9, split="dev", subgoals="Subgoal 1: A")["task_id"]
    assert row()["task_id"] not in (row(gold_answer="6")["task_id"], row("t")["task_id"])


def test_the_steps_of_an_episode_are_different_tasks():
    first, second = (record(step=True, episode="e", turns=(Turn("A", "R1 = R1"),) * length) for length in (1, 2))
    assert identity(first) != identity(second)
    assert identity(first) != identity(record(step=True, episode="f", turns=first.turns))


def test_a_row_holds_what_its_record_holds():
    made = row(subgoals="Subgoal 1: A", actions="R1 = B(1)", turns=(Turn("A", "R1 = B(1)"),), context="{}", split="dev")
    assert made == {
        "task_id": made["task_id"],
        "episode_id": made["task_id"],
        "source": "s",
        "trained": True,
        "domain": "maths",
        "metric": "number",
        "text": "Q",
        "turn": None,
        "turns": [],
        "gold_subgoals": "Subgoal 1: A",
        "gold_actions": "R1 = B(1)",
        "gold_answer": "5",
        "context": "{}",
    }


def test_a_corpus_holds_each_passage_once():
    both = (Passage("T", "1"), Passage("T", "2"))
    assert corpus([record(passages=both), record(passages=both[::-1])]) == list(both)
