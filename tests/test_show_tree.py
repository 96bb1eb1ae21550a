"""`moat show-tree`: moat/agent_r/drawn_tree.py, and the command."""

from html.parser import HTMLParser

import polars as pl
import pytest
from typer.testing import CliRunner

from moat import layout
from moat.agent_r.drawn_tree import NoTreeError, find, fragment, page
from moat.agent_r.play import Turn
from moat.agent_r.tree import Tree
from moat.cli import app
from moat.schemas.nodes import NODES
from moat.schemas.revisions import REVISIONS
from moat.schemas.trees import TREES

TASK = "path/<i>gold</i>"


def turn(action, reward, terminal=False, observation="seen", refused=False):
    return Turn(f"Action: {action}", "action", action, observation, reward, reward, terminal, refused, False)


def drawn():
    """Root → a (1) → b (2) → the bad end (3); a → c (4) → the good end (5); a reflection (6) that nobody chose."""
    tree = Tree("the <b>start</b>", 3, 0.25)
    a = tree.add(tree.root, turn("a", 0.0), 2, -1.0, False)
    tree.add(
        tree.root, Turn("Thought: I chose badly.", "reflection", "", "Go on.", 0.0, 0.0, False, False, False), 2, -1.0, False
    )
    b = tree.add(a, turn("b & <script>", 0.0, observation="no way <img>", refused=True), 2, -1.0, False)
    bad = tree.add(b, turn("stop", 0.25, True), 2, -1.0, True)
    good = tree.add(
        tree.add(a, turn("c", 0.5, observation="far " * 60), 2, -1.0, False), turn("d", 1.0, True), 2, -1.0, True
    )
    for node in (tree.root, a):
        tree.expand(node)
    for last in (bad, good):
        tree.back_up(last)
    return tree.rows(TASK)


def tree_row(task, dropped=None):
    return {
        "task_id": task,
        "environment": "path",
        "rollouts": 0 if dropped else 2,
        "stopped": "dropped" if dropped else "iterations",
        "best": 1.0,
        "worst": 0.25,
        "calls": 9,
        "tokens": 18,
        "steps": 7,
        "replayed": 0,
        "dropped": dropped,
        "message": f"{task}: turn 2 read another text" if dropped else "",
    }


def revision(bad, good, turn, dropped=None):
    return {
        "task_id": TASK,
        "environment": "path",
        "bad": bad,
        "good": good,
        "shared": 1,
        "n_bad": 3,
        "bad_reward": 0.25,
        "good_reward": 1.0,
        "first_bad": turn,
        "turn": turn,
        "revision_length": None if turn is None else turn + 1,
        "reflection": None if turn is None else turn + 1,
        "turns": [],
        "replayed": turn is not None,
        "reward": 1.0,
        "dropped": dropped,
        "message": dropped or "",
    }


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's folder, with Agent-R's pipeline in it; two rounds were searched, and the first revised."""
    root = tmp_path / "agent_r"
    rows = drawn()
    last = max(row["node"] for row in rows)
    for folder in (tmp_path, root):
        folder.mkdir(exist_ok=True)
        for name in ("dvc.yaml", "params.yaml"):
            (folder / name).write_text("{}\n")
    for key, tasks in (("1", [TASK, "path/old"]), ("2", ["path/lost", "path/new"])):
        trees = [tree_row(name, "replay" if name == "path/lost" else None) for name in tasks]
        TREES.write(root / layout.table("trees", key), trees, {})
        NODES.write(root / layout.table("nodes", key), [row | {"task_id": name} for name in tasks for row in rows], {})
    REVISIONS.write(root / layout.table("revisions", "1"), [revision(4, last, 1), revision(2, last, None, "no turn")], {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def show(*arguments):
    return CliRunner().invoke(app, ["show-tree", *arguments], env={"COLUMNS": "140", "NO_COLOR": "1"})


def test_the_terminal_shows_every_node_with_its_figures_and_marks(project):
    done = show(TASK)
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[0].startswith("round 1 · 2 rollouts · stopped: iterations · rewards 0.25 to 1.00 · 9 calls")
    assert [line.lstrip("│├└─ ").split("  → ")[0] for line in lines[1:8]] == [
        f"0 {TASK}  N 2  Q 0.62",
        "1 a  reward 0.00  N 2  Q 0.62",
        "3 b & <script>  reward 0.00  N 1  Q 0.25  refused  turn 2",
        "4 stop  reward 0.25  N 1  Q 0.25  simulated  end  bad 2",
        "5 c  reward 0.50  N 1  Q 1.00",
        "6 d  reward 1.00  N 1  Q 1.00  simulated  end  good 1  good 2",
        "2 (reflection) Thought: I chose badly.  reward 0.00  not visited  bad 1",
    ]
    assert all(len(line) <= 140 for line in lines)
    assert "…" in lines[5]
    assert lines[8:] == [
        "pair 1: bad path to node 2, good path to node 6, no turning point; dropped: no turn",
        "pair 2: bad path to node 4, good path to node 6, turning point 3; trained on",
    ]


def test_control_characters_of_a_model_do_not_act_on_the_terminal(project):
    """An action and an observation that would clear the screen and set the window's title are written out."""
    path = project / "agent_r" / layout.table("nodes", "1")
    nodes = NODES.read(path).with_columns(
        action=pl.when(pl.col("node") == 1).then(pl.lit("\x1b[2Ja")).otherwise(pl.col("action")),
        observation=pl.when(pl.col("node") == 1).then(pl.lit("\x1b]0;owned\x07\x9b2J")).otherwise(pl.col("observation")),
    )
    NODES.write(path, nodes.to_dicts(), {})
    said = show(TASK).stdout
    assert r"\x1b[2Ja" in said
    assert r"→ \x1b]0;owned\x07\x9b2J" in said
    assert not any(character in said for character in "\x1b\x07\x9b")


class Reader(HTMLParser):
    """Checks that every element is closed in its order, and gathers tags and text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone_and_what_was_said_is_text(project):
    """Every node is a `details`; no script, no image, no link; a task's or an observation's markup is shown as it is."""
    assert show(TASK, "--html", "out/tree.html").exit_code == 0
    reader = Reader()
    reader.feed((project / "out" / "tree.html").read_text(encoding="utf-8"))
    tags = [tag for tag, _ in reader.tags]
    assert (reader.open, tags.count("details"), tags.count("summary")) == ([], 7, 7)
    assert not {"script", "img", "link", "i", "b"} & set(tags)
    assert not any({"src", "href", "onclick"} & set(attributes) for _, attributes in reader.tags)
    text = "".join(reader.text)
    for said in (TASK, "b & <script>", "no way <img>", "the <b>start</b>", "Thought: I chose badly.", "far " * 60):
        assert said in text
    sides = [attributes.get("class") for tag, attributes in reader.tags if tag == "code"]
    assert sides == [None, None, "bad", "bad", "good", "good", "bad"]
    assert "prefers-color-scheme: dark" in page(find(project / "agent_r", TASK))


def test_a_part_of_a_page_has_no_style_of_its_own(project):
    assert fragment(find(project / "agent_r", TASK)).startswith('<div class="tree">')


def test_it_works_from_the_root_and_from_inside(project, monkeypatch):
    outside = show(TASK).stdout
    for folder in ("agent_r", "agent_r/data"):
        monkeypatch.chdir(project / folder)
        assert show(TASK).stdout == outside


def test_the_last_round_that_has_the_task_is_shown(project):
    assert show("path/old").stdout.startswith("round 1")
    assert show("path/new").stdout.startswith("round 2")
    done = show("path/new", "--round", "1")
    assert (done.exit_code, "no tree of a task 'path/new' in round 1" in done.stderr) == (1, True)
    assert show("path/new", "--round", "3").exit_code == 1


def test_a_dropped_tree_says_why(project):
    root = project / "agent_r"
    NODES.write(root / layout.table("nodes", "2"), [], {})
    done = show("path/lost")
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert "dropped: path/lost: turn 2 read another text" in done.stdout
    assert "<details" not in page(find(root, "path/lost"))


@pytest.mark.parametrize(("asked", "near"), [("path/knew", "path/new"), ("gold", TASK), ("zzz", "path/lost")])
def test_an_unknown_task_is_answered_with_near_ones(project, asked, near):
    with pytest.raises(NoTreeError, match="no tree of a task"):
        find(project / "agent_r", asked)
    done = show(asked)
    assert (done.exit_code, done.stdout) == (1, "")
    assert near in done.stderr


def test_before_the_first_search_the_stage_is_named(tmp_path):
    with pytest.raises(NoTreeError, match=r"no round .* has trees: `dvc repro -R .*` in the project's folder makes them"):
        find(tmp_path, TASK)


def test_a_round_without_trees_is_named_with_those_that_have_some(tmp_path):
    (tmp_path / layout.table("trees", "1")).parent.mkdir(parents=True)
    TREES.write(tmp_path / layout.table("trees", "1"), [], {})
    with pytest.raises(NoTreeError, match=r"round 9 has no trees in .*; there are those of round 1"):
        find(tmp_path, "textcraft/stick", "9")
