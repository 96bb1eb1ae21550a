"""The page of an Agent-R run: moat/agent_r/page.py, moat/agent_r/paper.py and agent_r/stages/report.py."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from moat import layout
from moat.agent_r import page, paper
from moat.agent_r.play import Turn
from moat.agent_r.rollouts import Played, Start
from moat.agent_r.tree import Tree
from moat.reporting import ReportError
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from tests import agent_checkout
from tests.agent_checkout import AgentCheckout

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = [
    one["text"]
    for one in json.loads((ROOT / "tests" / "hostile.json").read_text(encoding="utf-8"))
    if not re.search("[\ud800-\udfff]", one["text"])  # which no table can hold
] + ["<script>alert(1)</script>", "</pre></table><img src='http://x.example/'>", "{{ 7 * 7 }}{% raw %}", "a" * 5000]
SCRIPT, IMAGE = HOSTILE[-4:-2]
EVIL = "<i onclick='x()'>\"&amp;"  # in names
REFLECT = Turn("Thought: I chose badly. Let me fix that now.", "reflection", "", "Go on.", 0.0, 0.0, False, False, False)
ACT = Turn("Action: x", "action", "x", "seen", 0.0, 0.0, False, False, False)
WON = replace(ACT, text="Action: win", action="win", observation="done", reward_raw=10.0, reward=1.0, terminal=True)


def act(name, **more):
    return replace(ACT, text=f"Action: {name}", action=name, **more)


def play(task, turns, *, environment="textcraft", given=0, dropped=None):
    start = Start(f"{task}#{given}" if given else task, task, environment, "depth 1", "", "", (ACT,) * given)
    reward = turns[-1].reward
    ended = dropped or ("terminal" if turns[-1].terminal else "turns")
    return Played(start, tuple(turns), 10 * reward, reward, ended, dropped, dropped or "").row()


def goal(task, environment="textcraft", first="Goal: win.", searched=True):
    told = {"kind": "depth 1", "demonstrated": False, "instruction": "Play.", "gold": []}
    return {"task_id": task, "environment": environment, "first": first, "searched": searched} | told


def cut(task, n, said="Hm."):
    turns = [replace(ACT, text=said, kind="unreadable", action="").row()] * n
    row = {"cut_id": f"{task}#{n}", "task_id": task, "environment": "textcraft", "kind": "depth 1", "first": ""}
    return row | {"n_failed": 6, "turns": turns}


def searched(task, environment="textcraft"):
    """The rows of a tree: a, b and then x, a failed path; a, win; and a tree's row."""
    tree = Tree("Goal: win.", 3, 0.25)
    a = tree.add(tree.root, act("a"), 2, -1.0, False)
    bad = tree.add(tree.add(a, act("b", observation=IMAGE), 2, -1.0, False), act("x"), 2, -1.0, True)
    good = tree.add(a, WON, 2, -1.0, True)
    for node in (tree.root, a):
        tree.expand(node)
    for last in (bad, good):
        tree.back_up(last)
    costs = {"calls": 9, "tokens": 18, "steps": 7, "replayed": 2, "dropped": None, "message": ""}
    row = {"task_id": task, "environment": environment, "rollouts": 2, "stopped": "iterations", "best": 1.0, "worst": 0.0}
    nodes = tree.rows(task)
    ends = {node["action"]: node["node"] for node in nodes}
    return row | costs, nodes, ends


def revision(task, ends, *, environment="textcraft", dropped=None, replayed=True, reward=1.0):
    """Bad at its second turn: a, b, the reflection, win."""
    turns = [act("a"), act("b", observation=IMAGE, refused=True), REFLECT, WON]
    row = {"task_id": task, "environment": environment, "bad": ends["x"], "good": ends["win"], "shared": 1, "n_bad": 3}
    row |= {"bad_reward": 0.0, "good_reward": 1.0, "first_bad": 1, "turn": 1, "revision_length": 2, "reflection": 2}
    kept = {"turns": [turn.row() for turn in turns], "replayed": replayed, "reward": reward}
    return row | kept | {"dropped": dropped, "message": dropped or ""}


def labels(task, ends, reasons=""):
    found = [("good", "good", False), ("bad", "bad", True), ("uncertain", "bad", False)]
    return [
        {"task_id": task, "bad": ends["x"], "turn": n, "node": n + 1, "label": label, "reasons": reasons * (n == 0)}
        | {"tree": tree, "refused": refused}
        for n, (label, tree, refused) in enumerate(found)
    ]


def lesson(row_id, origin, said, learned, tokens, weight):
    texts = [text for one in said for text in ("told", one)]
    supervised = [bool(n % 2) and learned[n // 2] for n in range(len(texts))]
    row = {"row_id": row_id, "origin": origin, "task_id": "t/a", "environment": "textcraft", "reward": 1.0}
    return row | {"texts": texts, "supervised": supervised, "n_supervised": tokens, "weight": weight}


def write_round(key, tasks, settings, facts):
    """Trees of all tasks, a pair of each (the last is not kept), the judge's labels, and what is trained on."""
    made = [searched(task, environment) for task, environment in tasks]
    revised = [revision(task, ends, environment=world) for (task, world), (_, _, ends) in zip(tasks, made, strict=True)]
    revised[-1] |= {"dropped": "replayed: not over alpha", "message": "no", "reward": 0.5}
    judged = [row for (task, _), (_, _, ends) in zip(tasks, made, strict=True) for row in labels(task, ends, HOSTILE[0])]
    name = f"revision/{tasks[0][0]}/{revised[0]['bad']}/{revised[0]['good']}"
    said = ["Action: a", "Action: b", REFLECT.text, "Action: win"]
    lessons = [
        lesson("good/t/a/1", "good", ["Action: a", "Action: a", "Action: win"], [True] * 3, 12, 0.05),
        lesson(name, "revision", said, [False, False, True, True], 8, 0.125),
    ]
    rows = {TREES: [tree for tree, _, _ in made], NODES: [row for _, nodes, _ in made for row in nodes]}
    rows |= {REVISIONS: revised, JUDGEMENTS: judged, TRAINED: lessons}
    if settings["empty"]:
        rows = {schema: [] for schema in rows} | {TRAINED: lessons[:1]}
    if not settings["judged"]:
        rows[JUDGEMENTS] = []
    for schema, own in rows.items():
        schema.write(layout.table("sft" if schema is TRAINED else schema.name, key), own, facts)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a run's tables, summarises them and makes the page; gives metrics.json and the page as text."""

    def go(changes=None, keys=("1", "2"), *, empty=False, judged=True, cuts=True, left_out=(), found=True, game=True):
        rounds = {key: {"prev": str(int(key) - 1), "alpha": 0.5 + int(key) / 10, "epochs": 1} for key in keys}
        own = {"rounds": rounds, "evaluated": {"0": {"prev": ""}} | rounds} | (changes or {})
        checkout = AgentCheckout(tmp_path, agent_checkout.small_params(tmp_path / "agent_r", own))
        monkeypatch.chdir(checkout.root)
        tasks = [("t/a", "textcraft"), *([("g/a", "game")] if game else []), (f"t/{EVIL}", "textcraft")]
        GOALS.write(layout.TRAIN_TASKS, [goal(*task, first=SCRIPT) for task in tasks], {})
        tests = [goal("e/a"), goal("e/b"), *([goal("e/g", "game")] if game else [])]
        GOALS.write(layout.EVAL_TASKS, tests, {"left_out": list(left_out)})
        CUTS.write(layout.RECOVERY, [cut("e/a", 2, SCRIPT), cut("e/a", 3), cut("e/b", 2)] if cuts else [], {})
        for key in ("0", *keys):
            solved = [WON] if key != "0" else [ACT, replace(ACT, repeated=True)]
            plays = [
                play("e/a", solved),
                play("e/b", [REFLECT, ACT, replace(ACT, text="Hm.", kind="unreadable", action="")]),
            ]
            if game:
                plays.append(play("e/g", [replace(ACT, reward=0.5)], environment="game"))
            PLAYS.write(layout.evals(key), plays, {})
            again = [play("e/a", [REFLECT, WON], given=2), play("e/a", [ACT], given=3), play("e/b", [ACT] * 4, given=2)]
            again[2] |= {"dropped": "fault", "ended": "fault"} if key == "2" else {}
            PLAYS.write(layout.recoveries(key), again if cuts else [], {})
        removed = {"alpha: the better path is not good": 4, "beta: the paths are not far enough apart": 3}
        told = {"trees": 3, "paths": 6, "pairs": 0 if empty else 3, "removed": removed, "empty": {}}
        facts = {"counts": {"rows_in": 9, "kept": 2, "dropped": {"not good enough": 7}}} | ({"found": told} if found else {})
        for key in keys:
            write_round(key, tasks, {"empty": empty, "judged": judged}, facts)
        checkout.run("summarize")
        checkout.run("report")
        return json.loads(layout.METRICS.read_text()), layout.REPORT.read_text(encoding="utf-8")

    return go


class Reader(HTMLParser):
    """Gathers tags, text, and tables by the heading before them, as a list of rows by head; elements must close in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.tables = [], [], [], {}
        self.heading, self.said, self.heads, self.cells = "", "", [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("h2", "h3", "th", "td", "summary"):
            self.said = ""
        if tag == "table":
            self.heads = []
        if tag == "tr":
            self.cells = []

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())
        said = " ".join(self.said.split())
        if tag in ("h2", "h3", "summary"):
            self.heading = said
        elif tag in ("th", "td"):
            (self.heads if tag == "th" else self.cells).append(said)
        elif tag == "tr" and self.cells:
            self.tables.setdefault(self.heading, []).append(dict(zip(self.heads, self.cells, strict=True)))

    def handle_data(self, data):
        self.text.append(data)
        self.said += data

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def test_the_headline_has_the_figures_of_metrics_by_environment_and_test(run):
    """Of textcraft's two tasks one is solved after round 1, none before; the game's mean reward is a half throughout.

    One of two: Wilson's 95% interval is 9.5 to 90.5.
    """
    metrics, text = run()
    tables = Reader(text).tables
    rows = {(row["environment"], row["round"]): row for row in tables["From the start"]}
    assert set(rows) == {(name, key) for name in ("game", "textcraft") for key in ("cold start", "round 1", "round 2")}
    success, against = "success, % (95% interval)", "success against the cold start, points"
    assert [rows["textcraft", key][success] for key in ("cold start", "round 1")] == ["0.0 (0.0–65.8)", "50.0 (9.5–90.5)"]
    assert [rows["textcraft", key][against] for key in ("cold start", "round 1")] == ["", "+50.0"]
    assert rows["game", "round 2"]["mean reward, % (95% interval)"] == "50.0 (50.0–50.0)"
    again = {row["round"]: row for row in tables["Recovery"]}
    assert [(row["cuts"], row["of tasks"]) for row in tables["Recovery"]] == [("3", "2"), ("3", "2"), ("2", "1")]
    assert again["round 2"][success].startswith("50.0 (")
    for part, title in (("main", "From the start"), ("recovery", "Recovery")):
        for row in tables[title]:
            key = row["round"].removeprefix("round ").replace("cold start", "0")
            own = metrics["rounds"][key][part]["environments"][row["environment"]]
            assert row[success] == "{:.1f} ({:.1f}–{:.1f})".format(
                *(100 * own[name] for name in ("success", "success_low", "success_high"))
            )
    assert "Plays of round 2 that were lost and count nowhere: 1 recovery." in text


def test_the_other_tables_have_the_figures_of_metrics(run):
    """Search, thresholds, splices, the judge, the training set and the loops, of what the hand-made round holds."""
    metrics, text = run()
    tables = Reader(text).tables
    own = metrics["rounds"]["1"]
    searched = {(row["environment"], row["round"]): row for row in tables["Search"]}["textcraft", "1"]
    assert (searched["trees"], searched["solved, %"], searched["good and bad path, %"]) == ("2", "100.0", "100.0")
    assert [searched[name] for name in ("turns asked", "tokens", "environment steps")] == ["18", "36", "14"]
    removed = {row["figure"]: row["round 1, alpha 0.6"] for row in tables["What alpha and beta removed"]}
    assert removed == {
        "finished paths": "6",
        "two of a tree with different rewards": "10",
        "no pair, alpha: the better path is not good": "4",
        "no pair, beta: the paths are not far enough apart": "3",
        "pairs": "3",
        "pair not kept, replayed: not over alpha": "1",
        "not in the training set, not good enough": "7",
    }
    spliced = {(row["environment"], row["round"]): row for row in tables["Pairs and splices"]}
    assert spliced["textcraft", "1"]["of these kept, %"] == "50.0"
    assert spliced["textcraft", "1"]["dropped"] == "1 replayed: not over alpha"
    assert (spliced["game", "1"]["revision length"], spliced["game", "1"]["first bad turn"]) == ("2.00", "1.00")
    judge = {(row["environment"], row["round"]): row for row in tables["The judge"]}["textcraft", "1"]
    assert (judge["labels"], judge["agrees with the tree, %"]) == ("2 bad, 2 good, 2 uncertain", "100.0")
    assert (judge["good by the tree, %"], judge["bad, of those refused, %"]) == ("33.3", "100.0")
    taught = {(row["round"], row["origin"]): row for row in tables["Training set"]}["round 1", "revision"]
    assert (taught["rows"], taught["tokens learned from"], taught["weight in the loss"]) == ("1", "8", "1.000")
    loops = [row for row in tables["By length of the sequence"] if row["of"] == "trained on, good"]
    assert [(row["plays or rows"], row["length 1"]) for row in loops] == [("1", "1")] * 2
    assert own["search"]["environments"]["textcraft"]["tokens"] == 36
    assert own["trained"]["origin"]["good"]["loops"] == {"1": 1}


def test_the_start_and_recovery_are_never_averaged(run):
    """No row or line of the page is of both tests; a mean over environments is beside the paper's alone."""
    metrics, text = run()
    reader = Reader(text)
    (own,) = [row for row in reader.tables["Beside the paper"] if row["method"] == "this run (agent_r), round 1"]
    block = metrics["rounds"]["1"]
    assert own["from the start, mean of environments"] == f"{100 * block['main']['reward_avg']:.2f}" == "50.00"
    assert own["recovery, mean of environments"] == f"{100 * block['recovery']['reward_avg']:.2f}"
    assert reader.words.count("mean of environments") == 2
    titles = [attributes["aria-label"] for tag, attributes in reader.tags if tag == "figure"]
    assert titles[:4] == [
        "Success from the start",
        "Success in recovery",
        "Mean reward from the start",
        "Mean reward in recovery",
    ]


def test_the_papers_figures_stand_as_another_models(run):
    """Agent-R, arXiv 2501.11425: round 3, recovery, and TextCraft's recovery, against Direct-Revision and the best other."""
    assert {one.method: (one.start, one.recovery, one.textcraft) for one in paper.RESULTS} == {
        "Agent-R, round 3": (70.71, 46.75, 43.24),
        "Direct-Revision": (62.36, 35.67, 29.73),
        "the best other method": (65.12, None, None),
    }
    reader = Reader(run(keys=("1",))[1])
    models = [row["model"] for row in reader.tables["Beside the paper"]]
    assert models == ["Llama-3.1-8B-Instruct"] * 3 + ["embedded (made here)"] * 2
    assert "of another model and other tasks (WebShop, ScienceWorld, TextCraft)" in reader.words


def test_what_tasks_and_models_wrote_is_text(run):
    """In a first observation, an answer, a judge's reasons, a given turn, a task's name: shown as it is, never markup."""
    _, text = run()
    reader = Reader(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "div", "span", "p"}
    allowed |= {"h1", "h2", "h3", "ul", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    allowed |= {"br", "strong", "details", "summary", "figure", "figcaption"}
    drawing = {"svg", "defs", "style", "g", "path", "use", "text", "clippath", "rect"}
    assert {tag for tag, _ in reader.tags} <= allowed | drawing
    assert not any(set(attributes) & {"src", "onclick", "onload"} for _, attributes in reader.tags)
    said = "".join(reader.text)
    for one in (HOSTILE[0], IMAGE, SCRIPT, EVIL):
        assert one in said


@pytest.mark.parametrize("text", HOSTILE)
def test_every_hostile_text_of_a_turn_is_shown_or_cut(text):
    """A turn's texts are escaped by the template, and cut at a length that is said."""
    turn = page.shown(replace(ACT, text=text, observation=text).row(), "own")
    shown = page.rendered("agent_r/page.html.j2", **minimal([turn]))
    reader = Reader(shown)
    assert not {"script", "img", "think", "i"} & {tag for tag, _ in reader.tags}
    start = text[: page.LONGEST]
    assert "".join(reader.text).count(start) >= 2
    assert (f"({len(text) - page.LONGEST:,} more characters)" in shown) is (len(text) > page.LONGEST)


def minimal(turns):
    """What the template wants, with nothing but one recovery."""
    grids = dict.fromkeys(
        ("kinds", "conduct", "paper", "searched", "thresholds", "revised", "judged", "repeats", "lengths", "taught"),
        page.Grid([], []),
    )
    row = {"environment": "e", "play_id": "p", "success": False, "given": 0, "n_turns": 1, "reward": 0.0, "ended": "turns"}
    recovery = {"row": row, "cut": {"n_failed": 2}, "told": "", "turns": turns}
    told = {"facts": [], "deviations": [], "notes": [], "tests": {}, "charts": [], "trees": [], "splices": [], "last": "1"}
    told |= {"first": "cold start", "mode": "bc", "examples": None, "paper_source": "", "paper_environments": []}
    return grids | told | {"tree_css": "", "recoveries": [recovery]}


def test_nothing_is_loaded_and_equal_inputs_give_equal_bytes(run):
    _, first = run()
    _, second = run()
    assert first == second
    reader = Reader(first)
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object"}
    assert all(attributes.get("href", "#").startswith("#") for _, attributes in reader.tags)
    assert "default-src 'none'" in first
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', first)) <= set(ids)
    assert re.findall(r"https?://", re.sub(r"&[a-z#0-9]+;http://x\.example/", "", first)) == []


def test_splices_are_shown_with_labels_and_what_is_learned(run):
    """a (initial), b (bad, refused), the reflection, win: the last two are learned from, where the training set has it."""
    _, text = run()
    reader = Reader(text)
    parts = [attributes.get("class") for tag, attributes in reader.tags if tag == "tr"]
    assert parts.count("initial") == parts.count("good") == 3
    assert "Splices of round 2" in reader.words
    assert "1 initial Action: a seen good , good" in reader.words
    assert re.search(r"reflection Thought: I chose badly\. Let me fix that now\. Go on\. learned", reader.words)
    assert "It is not in the training set, being too long." in reader.words  # the game's
    trained = re.findall('data-label="in training">(\\w*)<', text)
    assert sorted(trained) == [""] * 8 + ["context"] * 2 + ["learned"] * 2  # one of the three splices is in the set
    assert "not trained on: replayed: not over alpha" in reader.words
    assert "The bad path ends with 0.00 after 3 turns, of which 2 are kept" in reader.words


def test_trees_are_folded_and_name_their_pairs(run):
    _, text = run()
    reader = Reader(text)
    assert "Search trees of round 2" in reader.words
    assert reader.words.count("5 nodes, 2 rollouts, rewards 0.00 to 1.00") == 2
    assert "pair 1: bad path to node 3, good path to node 4, turning point 2; trained on" in reader.words


def test_recoveries_of_both_kinds_are_shown_after_the_given_turns(run):
    _, text = run()
    reader = Reader(text)
    badges = re.findall(r'<span class="badge (?:good|bad)">((?:not )?recovered)</span>', text)
    assert badges == ["recovered", "not recovered"]
    parts = [attributes.get("class") for tag, attributes in reader.tags if tag == "tr"]
    assert (parts.count("given"), parts.count("own")) == (5, 2)
    assert "After 2 of the 6 failed turns the actor took 2, and came to 1.00 (ended by terminal)." in reader.words


# --- what is missing --------------------------------------------------------------------------------------------------


def test_an_environment_that_was_left_out_is_named(run):
    """Without Java there is textcraft alone; its one kind of task is no table of kinds."""
    _, text = run(left_out=["cookingworld"], game=False, keys=("1",))
    reader = Reader(text)
    assert {row["environment"] for row in reader.tables["From the start"]} == {"textcraft"}
    assert "left out cookingworld" in reader.words
    assert "cookingworld was left out" in reader.words
    assert "By kind of task" not in reader.words


def test_behaviour_cloning_has_neither_search_nor_revisions(run):
    """Nor examples of them; the rest of the page is there."""
    changes = {"mode": "bc", "train.updates": 5}
    _, text = run(changes, empty=True, judged=False, found=False)
    reader = Reader(text)
    assert "Nothing was searched (mode bc)." in reader.words
    assert not {"Search", "Pairs and splices", "The judge"} & set(reader.tables)
    assert not re.search("Splices of|Search trees of", reader.words)
    assert "5 updates in place of epochs" in reader.words
    assert [row["origin"] for row in reader.tables["Training set"]] == ["good", "good"]
    assert "judge none in mode bc" in reader.words


def test_a_round_without_pairs_says_what_emptied_it(run):
    _, text = run(empty=True, judged=False)
    said = "Round 2 had nothing to revise: 4 alpha: the better path is not good, 3 beta: the paths are not far enough apart."
    assert said in text
    assert "Splices of" not in text


def test_a_mode_without_a_judge_has_splices_without_labels(run):
    _, text = run({"mode": "direct_revision"}, judged=False, keys=("1",))
    reader = Reader(text)
    assert "The judge" not in reader.tables
    assert "1 initial Action: a seen context" in reader.words


def test_an_empty_recovery_set_is_said(run):
    _, text = run(cuts=False, keys=("1",))
    reader = Reader(text)
    assert "No recovery was measured" in reader.words
    assert "Recovery Nothing was measured." in reader.words
    assert "Success in recovery" not in text
    assert "Recoveries in" not in reader.words


def test_a_run_without_rounds_has_round_0_alone(run):
    """Of the paper's profile, whose round 0 is the base model."""
    _, text = run({"cold_start.enabled": False}, keys=())
    reader = Reader(text)
    assert [row["round"] for row in reader.tables["From the start"]] == ["base model"] * 2
    assert "No round trained on anything." in reader.words
    assert "Recoveries in base model" in reader.words


def test_a_recovery_of_another_run_is_refused(run):
    run(keys=("1",))
    CUTS.write(layout.RECOVERY, [], {})
    plays, cuts, goals = PLAYS.read(layout.recoveries("1")), CUTS.read(layout.RECOVERY), GOALS.read(layout.EVAL_TASKS)
    with pytest.raises(ReportError, match="e/a#2 has no cut or no task"):
        page.recoveries(plays, cuts, goals)


def test_examples_are_of_every_environment_and_do_not_depend_on_order():
    found = [("a", f"a{n}") for n in range(20)] + [("b", "b0")]
    picked = page.pick(found, 3)
    assert picked == page.pick(found[::-1], 3)
    assert "b0" in picked[:2]
    assert len(page.pick(found, 99)) == 21
    assert page.pick([], 2) == []
