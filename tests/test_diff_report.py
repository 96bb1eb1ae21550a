"""`moat diff` on files and on a small checkout: what is paired, shown and refused (diff_report.py, diff_page.py, cli.py)."""

import json
import re
import shutil

import lxml.html
import polars as pl
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from moat import layout
from moat.cli import app
from moat.diff_report import known
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from tests.conftest import ROOT
from tests.damage import cell, rewrite, without

HOSTILE = "R1 = [bold]Calc[/bold](\x1b[31m2\x9b)</pre><script>alert(1)</script>"


def moat(*arguments):
    """Run `moat diff`; the output on lines as wide as they come."""
    return CliRunner().invoke(app, ["diff", *map(str, arguments)], env={"COLUMNS": "300", "NO_COLOR": "1"})


def told(*arguments):
    """The JSON that it prints."""
    return json.loads(moat(*arguments, "--json").stdout)


def acted(task, k, outcome="reached", actions="R1 = Calculator(1 + 1)", answer="2"):
    row = {"task_id": task, "k": k, "actions": actions, "finish_reason": "stop", "outcome": outcome}
    return row | {"answer": answer, "message": ""}


def write_as(path, frame, version=1):
    """Write a frame that says it is a table of actions, whatever its columns."""
    said = {b"moat": json.dumps({"table": "actions", "version": version, "facts": {}}).encode()}
    pq.write_table(frame.to_arrow().replace_schema_metadata(said), path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder outside of any project, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def two(place):
    """Two tables of actions: a/1 turned right, b/0 wrong, b/1 went, c/0 came."""
    one = [acted("a", 0), acted("a", 1, "not_reached"), acted("b", 0), acted("b", 1)]
    other = [
        acted("a", 0),
        acted("a", 1, actions="R1 = Calculator(1 * 1)"),
        acted("b", 0, "syntax", answer=None),
        acted("c", 0),
    ]
    for name, rows in (("one", one), ("other", other)):
        ACTIONS.write(place / f"{name}.parquet", rows, {})
    return "one.parquet", "other.parquet"


@pytest.fixture
def project(clean_checkout, tmp_path, monkeypatch):
    """A copy of the clean checkout's data, without DVC, which is also the current folder."""
    shutil.copytree(clean_checkout / "data", tmp_path / "project" / "data")
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(clean_checkout / name, tmp_path / "project" / name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


# --- two files --------------------------------------------------------------------------------------------------------


def test_two_files_are_compared_by_the_key_of_their_table(two):
    """Outside of a project too."""
    (table,) = told(*two)["tables"]
    found = table["comparison"]
    assert (table["status"], table["key"]) == ("differs", ["task_id", "k"])
    assert (found["rows"], found["n_added"], found["n_removed"], found["n_changed"]) == ([4, 4], 1, 1, 2)
    assert (found["added"], found["removed"]) == ([{"task_id": "c", "k": 0}], [{"task_id": "b", "k": 1}])
    assert {name: n for name, n in found["columns"].items() if n} == {"actions": 1, "outcome": 2, "answer": 1}
    turned = found["turned"]
    assert (turned["n_right"], turned["right"]) == (1, [{"task_id": "a", "k": 1}])
    assert (turned["n_wrong"], turned["wrong"]) == (1, [{"task_id": "b", "k": 0}])
    (outcome,) = [column for column in table["columns"] if column["name"] == "outcome"]
    assert outcome["before"]["shares"] == [["reached", 0.75], ["not_reached", 0.25]]
    assert outcome["after"]["shares"] == [["reached", 0.75], ["syntax", 0.25]]
    assert outcome["doc"].startswith("reached, not_reached")


def test_the_exit_status_tells_equal_from_different_from_an_error(two):
    shutil.copyfile(two[0], "copy.parquet")
    assert (moat(two[0], "copy.parquet").exit_code, moat(*two).exit_code, moat(two[0], "nothing").exit_code) == (0, 1, 2)
    assert "no difference" in moat(two[0], "copy.parquet").stdout


def test_rows_that_are_equal_are_no_difference_whatever_the_bytes(two, place):
    """The facts of the run differ."""
    rows = pl.read_parquet(two[0]).to_dicts()
    ACTIONS.write(place / "again.parquet", rows, {"engine": "another"})
    assert (place / "again.parquet").read_bytes() != (place / two[0]).read_bytes()
    done = moat(two[0], "again.parquet")
    assert (done.exit_code, "no difference" in done.stdout) == (0, True)


def test_a_tolerance_makes_near_floats_equal(place):
    for name, nll in (("one", 0.5), ("other", 0.5004)):
        SCORES.write(place / f"{name}.parquet", [{"task_id": "a", "k": 0, "nll": nll, "ppl": 2.0, "n_action_tokens": 3}], {})
    assert moat("one.parquet", "other.parquet").exit_code == 1
    assert moat("one.parquet", "other.parquet", "--tolerance", "0.0003").exit_code == 1
    assert moat("one.parquet", "other.parquet", "--tolerance", "0.0005").exit_code == 0


def test_changes_of_the_schema_come_first(two):
    """A column that came with a type of its own, one that went with its sentence, and the version."""
    frame = pl.read_parquet(two[1]).drop("message").with_columns(pl.col("k").cast(pl.Int64), seconds=pl.lit(1.5))
    write_as(two[1], frame, version=2)
    (table,) = told(*two)["tables"]
    assert [tuple(change.values()) for change in table["schema"]] == [
        ("k", "Int32", "Int64"),
        ("message", "String", None),
        ("seconds", None, "Float64"),
    ]
    assert table["versions"] == [1, 2]
    assert table["comparison"]["n_changed"] == 2
    lines = moat(*two).stdout.splitlines()
    places = [
        next(n for n, line in enumerate(lines) if said in line) for said in ("message (String)", "version of", "rows: ")
    ]
    assert places == sorted(places)
    assert "message (String) is only in the first: Why it failed, in words" in " ".join(lines)


def test_equal_rows_of_another_version_are_a_difference(two):
    write_as("new.parquet", pl.read_parquet(two[0]), version=2)
    assert moat(two[0], "new.parquet").exit_code == 1


def test_a_file_of_an_unknown_table_needs_a_key(place):
    for name, score in (("one", 1), ("other", 2)):
        pl.DataFrame({"id": ["a", "b"], "score": [1, score]}).write_parquet(f"{name}.parquet")
    done = moat("one.parquet", "other.parquet")
    assert (done.exit_code, "one.parquet does not say which table" in done.stderr, "--key" in done.stderr) == (2, True, True)
    (table,) = told("one.parquet", "other.parquet", "--key", "id")["tables"]
    assert table["comparison"]["n_changed"] == 1
    done = moat("one.parquet", "other.parquet", "--key", "id,place")
    assert (done.exit_code, "no column 'place'" in done.stderr) == (2, True)


def test_a_list_is_no_key(place):
    for name in ("one", "other"):
        pl.DataFrame({"id": [[1], [2]], "name": [name, ""]}).write_parquet(f"{name}.parquet")
    done = moat("one.parquet", "other.parquet", "--key", "id")
    assert (done.exit_code, "'id' of one.parquet is List(Int64): name columns of plain values" in done.stderr) == (2, True)


def test_two_tables_of_different_kinds_are_refused(two, place):
    SCORES.write(place / "scores.parquet", [{"task_id": "a", "k": 0, "nll": 1.0, "ppl": 2.0, "n_action_tokens": 3}], {})
    done = moat(two[0], "scores.parquet")
    assert (done.exit_code, "is table 'actions' and scores.parquet is 'scores'" in done.stderr) == (2, True)


def test_keys_of_types_that_cannot_be_compared_are_refused(two):
    frame = pl.read_parquet(two[1]).with_columns(pl.col("k").cast(pl.String))
    write_as(two[1], frame)
    done = moat(*two)
    assert (done.exit_code, "the key 'k' is Int32 in one.parquet and String in other.parquet" in done.stderr) == (2, True)


def test_a_broken_file_is_named_with_its_remedy(two, place):
    (place / "torn.parquet").write_bytes((place / two[0]).read_bytes()[:500])
    done = moat(two[0], "torn.parquet")
    assert (done.exit_code, "torn.parquet is not a readable Parquet file" in done.stderr) == (2, True)
    assert "dvc checkout" in done.stderr
    data = bytearray((place / two[0]).read_bytes())
    data[8:200] = bytes(192)
    (place / "zeros.parquet").write_bytes(bytes(data))
    done = moat(two[0], "zeros.parquet")
    assert (done.exit_code, "zeros.parquet cannot be read to its end" in done.stderr) == (2, True)


def test_a_key_that_is_twice_is_an_error_that_names_the_file(two):
    frame = pl.read_parquet(two[1])
    write_as(two[1], pl.concat([frame, frame.head(1)]))
    done = moat(*two)
    assert done.exit_code == 2
    assert re.search(r"other\.parquet has the key \{'task_id': 'a', 'k': 0\} more than once", done.stderr)


# --- texts ------------------------------------------------------------------------------------------------------------


def test_texts_of_models_do_not_act_on_terminal_or_page(two, place):
    """Control characters and markup in texts, keys and values are shown, not obeyed."""
    rewrite(place / two[1], cell("actions", HOSTILE, pl.col("task_id") == "b"))
    rewrite(place / two[1], cell("outcome", "\x1b[2J[red]", pl.col("task_id") == "b"))
    rewrite(place / two[1], cell("task_id", "<i>\x1b[1m[blue]", pl.col("task_id") == "c"))
    done = moat(*two, "--html", "page.html")
    assert done.exit_code == 1
    assert not [char for char in done.stdout if char < " " and char not in "\n\t"]
    assert "\x9b" not in done.stdout
    for said in (r"\x1b[31m", "[bold]", r"\x1b[2J[red]", r"<i>\x1b[1m[blue]"):
        assert said in done.stdout
    text = (place / "page.html").read_text(encoding="utf-8")
    page = lxml.html.fromstring(text)
    assert not page.xpath("//script") + page.xpath("//i")
    assert "\x1b" not in text
    assert all(said in page.text_content() for said in ("<script>alert(", "[bold]", r"<i>\x1b[1m[blue]"))


def test_changed_words_are_between_marks_where_there_are_no_colours(two):
    assert "R1 = Calculator(1 [-+-]{+*+} 1)" in moat(*two).stdout


def test_changed_words_are_coloured_on_a_terminal():
    import io

    from rich.console import Console

    from moat.diff_page import on_terminal
    from moat.words import parts

    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    out.print(on_terminal(parts("a b", "a c"), coloured=True))
    said = out.file.getvalue()
    assert "\x1b[9;31mb\x1b[0m" in said
    assert "\x1b[4;32mc\x1b[0m" in said
    assert "[-" not in said


def test_the_page_shows_what_the_terminal_shows(two, place):
    """Counts, what turned, shares, and the changed words as deletions and insertions; nothing from elsewhere."""
    moat(*two, "--html", "page.html")
    text = (place / "page.html").read_text(encoding="utf-8")
    page = lxml.html.fromstring(text)
    counts = [cell.text_content() for cell in page.xpath("//table[contains(@class,'overview')]//tr[1]/td")]
    assert counts == ["differs", "4 → 4", "1", "1", "2"]
    assert [node.text_content() for node in page.xpath("//article//del")][:1] == ["+"]
    assert [node.text_content() for node in page.xpath("//article//ins")][:1] == ["*"]
    assert "by outcome, 1 turned right and 1 turned wrong" in page.text_content()
    assert "Content-Security-Policy" in text
    assert not page.xpath("//@src")
    assert all(link.startswith("#") and page.get_element_by_id(link[1:]) is not None for link in page.xpath("//@href"))


def test_the_page_does_not_replace_what_is_compared(two, place):
    before = (place / two[0]).read_bytes()
    assert moat(*two, "--html", two[0]).exit_code == 2
    assert (place / two[0]).read_bytes() == before


# --- rounds of a project without DVC ----------------------------------------------------------------------------------


def test_two_rounds_are_compared_table_by_table(project):
    """All that the rounds have, evaluations too, each by hand against polars."""
    found = {table["name"]: table for table in told("1", "2")["tables"]}
    assert set(found) == {"actions", "critiques", "dynamics", "evals", "pairs", "pool", "scores", "sft", "subgoals"}
    for schema in (ACTIONS, CRITIQUES, PAIRS):
        one, other = (pl.read_parquet(project / layout.table(schema.name, key)) for key in "12")
        joined = one.join(other, on=list(schema.key), suffix="_after")
        comparison = found[schema.name]["comparison"]
        for column in one.columns:
            if column not in schema.key:
                expected = joined.select((pl.col(column).ne_missing(pl.col(f"{column}_after"))).sum()).item()
                assert comparison["columns"][column] == expected, (schema.name, column)
        assert comparison["n_removed"] == len(one) - len(joined)
    scores = [pl.read_parquet(project / layout.table("scores", key)) for key in "12"]
    means = [frame.group_by("task_id").agg(pl.col("nll").mean()) for frame in scores]
    moved = means[0].join(means[1], on="task_id", suffix="_after")
    ppl = found["scores"]["comparison"]["perplexity"]
    assert (ppl["n"], ppl["n_lower"]) == (len(moved), moved.filter(pl.col("nll_after") < pl.col("nll")).height)
    assert ppl["after"] == pytest.approx(moved.select(pl.col("nll_after").mean().exp()).item())


def test_which_tasks_turned_right_is_what_the_evaluations_say(project):
    (table,) = told("0", "2", "--table", "evals")["tables"]
    one, other = (pl.read_parquet(project / layout.evals(key)) for key in "02")
    turned = one.join(other, on="task_id", suffix="_after").filter(~pl.col("success"), pl.col("success_after"))
    assert [row["task_id"] for row in table["comparison"]["turned"]["right"]] == sorted(turned["task_id"])
    assert 0 <= table["comparison"]["turned"]["mcnemar_p"] <= 1


def test_tables_that_one_round_has_alone_are_told(project):
    """Round 0 has an evaluation and an empty pool."""
    found = {table["name"]: table["status"] for table in told("0", "1")["tables"]}
    assert found.pop("evals") == "differs"
    assert found.pop("pool") == "differs"
    assert set(found.values()) == {"only in the second"}


def test_asking_for_a_table_that_a_side_lacks_is_an_error(project):
    done = moat("0", "1", "--table", "pairs")
    assert (done.exit_code, "0 has no table 'pairs': it has evals, pool" in done.stderr) == (2, True)


def test_a_file_is_compared_with_one_named_table_of_a_round(project):
    shutil.copyfile(layout.table("pairs", "1"), "mine.parquet")
    rewrite("mine.parquet", without(pl.lit(value=True)))
    found = told("mine.parquet", "1", "--table", "pairs")["tables"]
    assert [(table["name"], table["comparison"]["n_added"]) for table in found] == [("pairs", 1)]
    done = moat("mine.parquet", "1")
    assert (done.exit_code, "name it with --table" in done.stderr) == (2, True)


def test_a_round_that_is_not_there_is_an_error_that_lists_those_there_are(project):
    done = moat("1", "7")
    assert (done.exit_code, "round 7 has no table here; rounds with tables: 0, 1, 2" in done.stderr) == (2, True)


def test_outside_of_a_project_rounds_are_an_error(place):
    done = moat("1", "2")
    assert (done.exit_code, "dvc.yaml" in done.stderr) == (2, True)


def test_every_schema_is_known_by_its_name():
    modules = {path.stem for path in (ROOT / "moat/schemas").glob("*.py")} - {"__init__"}
    assert set(known()) == modules
