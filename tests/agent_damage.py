"""Faults to put into the tables of tests/agent_rounds.py's checkout, each with the finding that must name it."""

import polars as pl

from moat.agent_r.turns import REFLECTIONS
from tests.damage import Damage, cell, counts, rewrite, without

R1 = "data/rounds/1"
NODES, TREES, SFT = f"{R1}/nodes.parquet", f"{R1}/trees.parquet", f"{R1}/sft.parquet"
JUDGED, REVISED = f"{R1}/judgements.parquet", f"{R1}/revisions.parquet"
TRAIN, EVAL, DEMOS, GENERAL = (
    f"data/{name}.parquet" for name in ("tasks/train", "tasks/eval", "demos/actor", "demos/general")
)
CUTS, PLAYS, RECOVERIES = "data/recovery.parquet", "data/evals/1.parquet", "data/recoveries/1.parquet"

USED, LOST = pl.col("dropped").is_null(), pl.col("dropped").is_not_null()
GOLD, STEP, SLIP, AGAIN = (pl.col("origin") == origin for origin in ("gold", "judged", "slip", "repeated"))
END, INNER = pl.col("end"), ~pl.col("end") & (pl.col("node") > 0) & (pl.col("visits") > 1)
ACTED, IDLE = pl.col("kind") == "action", pl.col("kind") != "action"
TURNS = pl.col("turns").list.len() > 0


def same(frame):
    """The rows as they are."""
    return frame


def turn(place, **own):
    """Change a turn of a list of turns."""
    return lambda turns: [one | own if number == place % len(turns) else one for number, one in enumerate(turns)]


def ended_early(turns):
    """The first action, which is not the last turn, ends the episode."""
    place = [one["kind"] for one in turns[:-1]].index("action")
    return turn(place, terminal=True)(turns)


def text_of(place, text):
    """Change a text of a conversation."""
    return lambda texts: [text if number == place % len(texts) else one for number, one in enumerate(texts)]


def mark(place, value=True):
    """Change whether a text is learned from."""
    return lambda marks: [value if number == place % len(marks) else one for number, one in enumerate(marks)]


def all_learned(marks):
    """The slip too is learned from."""
    return [bool(number % 2) for number in range(len(marks))]


def in_both(frame):
    """A training task has the name of an evaluation task."""
    return cell("task_id", pl.read_parquet(EVAL)["task_id"][0])(frame)


def siblings_alike(frame):
    """A child is given the action of the one before it, in capitals."""
    rows = frame.to_dicts()
    first = next(row for row in rows if row["kind"] == "action")
    other = next(
        number
        for number, row in enumerate(rows)
        if row["kind"] == "action" and row["node"] != first["node"] and row["parent"] == first["parent"]
    )
    return cell("action", f" {first['action'].upper()}", other)(frame)


def parent_after(frame):
    """A node is made before its parent."""
    return cell("parent", lambda parent: 99, (pl.col("node") == 3))(frame)


def early(frame):
    """A path ends in the midst of the tree, at a node without children."""
    rows = frame.to_dicts()
    parents = {(row["task_id"], row["parent"]) for row in rows}
    leaf = next(n for n, row in enumerate(rows) if not row["end"] and (row["task_id"], row["node"]) not in parents)
    return cell("end", True, leaf)(frame)


def in_the_history(frame):
    """A turning point in the common history; the reflection stands after it."""
    row = frame.with_row_index().filter(USED & (pl.col("shared") > 0))["index"][0]
    return cell("turn", frame["shared"][row] - 1, row)(frame)


def cut_again(frame):
    """A second cut of one trajectory, a turn later."""
    row = frame.to_dicts()[0]
    name, _, kept = row["cut_id"].rpartition("#")
    later = row | {"cut_id": f"{name}#{int(kept) + 1}", "turns": [*row["turns"], row["turns"][-1]]}
    return pl.concat([frame, pl.DataFrame([later], frame.schema)]).sort("cut_id")


def not_good(frame):
    """A kept splice's reward, and that of its last turn, are no good path's."""
    row = frame.with_row_index().filter(USED)["index"][0]
    changed = cell("turns", turn(-1, reward=0.25), row)(frame)
    return cell("reward", 0.25, row)(changed)


def as_no_demonstration(frame):
    """A gold path of a training task that is not demonstrated."""
    tasks = pl.read_parquet(TRAIN)
    return cell("task_id", tasks.filter(~pl.col("demonstrated"))["task_id"][0], GOLD)(frame)


TABLES = (
    # files
    Damage("version", NODES, same, "version 99", lambda said: said.update(version=99)),
    Damage("key twice", TREES, lambda f: pl.concat([f[:1], f]), "twice"),
    Damage("order", REVISED, lambda f: f.reverse(), "not in the order of the key"),
    Damage("sum of counts", SFT, same, "do not add up", counts("rows_in", 1)),
    Damage("counted trees", NODES, same, "its counts say kept", counts("kept", 1)),
    Damage("counted drops", REVISED, cell("dropped", "for no reason", LOST), "its counts say dropped"),
    Damage("no counts", PLAYS, same, "its metadata has no counts", lambda said: said["facts"].pop("counts")),
    # tasks and demonstrations
    Damage("both", TRAIN, in_both, "the task stands in data/tasks/eval.parquet too"),
    Damage("searched", TRAIN, cell("searched", False, pl.col("searched")), "5 tasks, 3 of them demonstrated and 4 searched"),
    Damage("told", EVAL, cell("instruction", "Do as you like."), "its instruction is not its environment's"),
    Damage("world", EVAL, cell("environment", "elsewhere"), "of an environment that params.yaml lacks"),
    Damage("gold", TRAIN, cell("gold", lambda gold: gold[:-1]), "the gold actions do not solve it"),
    Damage("first", EVAL, cell("first", lambda text: f"{text} "), "the first observation is not the environment's"),
    Damage("no task", EVAL, cell("task_id", "textcraft/philosophers_stone"), "the environment has no such task"),
    Damage(
        "shown gold",
        DEMOS,
        cell("texts", text_of(1, "Action: inventory"), GOLD),
        "not its task's gold actions",
    ),
    Damage("shown answer", DEMOS, cell("texts", text_of(2, "Got 99 sticks"), GOLD), "are answered otherwise"),
    Damage("shown task", DEMOS, as_no_demonstration, "its task is no demonstrated one"),
    Damage("shown world", DEMOS, cell("environment", "elsewhere", GOLD), "its environment is not its task's"),
    Damage("shown begin", DEMOS, cell("texts", text_of(0, "Craft."), GOLD), "does not begin with its task's"),
    Damage("not shown", DEMOS, without(GOLD), "1 demonstrated tasks are not shown"),
    Damage("shown twice", DEMOS, cell("row_id", "gold/another", GOLD), "row_id is not gold/TASK"),
    Damage("label", DEMOS, cell("texts", text_of(1, "Judgment: Fine"), STEP), "no question about a step of its task"),
    Damage("judged id", DEMOS, cell("row_id", "judged/x/99", STEP), "none of gold, slip, judged and repeated"),
    Damage("repeated", DEMOS, cell("texts", text_of(1, "other words"), AGAIN), "it is no text that is said again"),
    Damage("slip id", DEMOS, cell("row_id", "slip/another/0", SLIP), "row_id is not slip/TASK/NUMBER"),
    Damage("slip learned", DEMOS, cell("supervised", all_learned, SLIP), "not its task's gold actions"),
    Damage("slip answer", DEMOS, cell("texts", text_of(2, "Got 99 sticks"), SLIP), "are answered otherwise"),
    Damage("slip lost", DEMOS, cell("texts", text_of(-1, "Action: inventory"), SLIP), "not its task's gold actions"),
    Damage("general", GENERAL, cell("environment", "textcraft"), "not as a general conversation is"),
    Damage("observation learned", DEMOS, cell("supervised", mark(0), GOLD), "what the environment's side says is learned"),
    Damage("nothing learned", SFT, cell("supervised", lambda marks: [False] * len(marks)), "nothing of it is learned from"),
    Damage("half a turn", DEMOS, cell("texts", lambda texts: texts[:-1], GOLD), "not in turns of two sides"),
    # turns
    Damage("kind", NODES, cell("kind", "reflection", ACTED), "not read as what its text says"),
    Damage("idle reward", NODES, cell("reward", 0.5, IDLE & (pl.col("node") > 0)), "as if it had one"),
    Damage("over 1", NODES, cell("reward", 1.5, ACTED), "a reward is not from 0 to 1"),
    Damage("action", CUTS, cell("turns", turn(0, action="get 9 logs")), "not read as what its text says"),
    Damage("after the end", PLAYS, cell("turns", ended_early, ~pl.col("success")), "a turn follows the end of the"),
    Damage("observation", NODES, cell("observation", "Got 99 sticks", ACTED & END), "played again, it is another"),
    Damage("repeated", NODES, cell("repeated", lambda was: not was, ACTED & END), "what is refused or repeated is another"),
    Damage("cut's answer", CUTS, cell("turns", turn(0, observation="Fine.")), "played again, it is another"),
    Damage("play's answer", PLAYS, cell("turns", turn(-1, observation="Fine.")), "played again, it is another"),
    Damage("recovery's answer", RECOVERIES, cell("turns", turn(-1, observation="Fine.")), "played again, it is another"),
    Damage("splice's answer", REVISED, cell("turns", turn(-1, observation="Fine."), USED), "played again, it is another"),
    # trees
    Damage("no tree", TREES, without(USED), "1 searched tasks have no tree"),
    Damage("a tree of no task", TREES, cell("task_id", "textcraft/none"), "its task is none in data/tasks/train.parquet"),
    Damage("another world", TREES, cell("environment", "elsewhere"), "its environment is not its task's"),
    Damage("nodes of no tree", NODES, cell("task_id", "a"), "a node of a task without a tree"),
    Damage("no nodes", NODES, lambda f: f.filter(pl.col("task_id") != f["task_id"][0]), "1 trees have no nodes"),
    Damage("gap", NODES, without(pl.col("node") == 2), "not numbered from 0 without a gap"),
    Damage("root", NODES, cell("text", "Action: a", pl.col("node") == 0), "node 0 is no root"),
    Damage("root's text", NODES, cell("observation", "x", pl.col("node") == 0), "the root's observation is not the task's"),
    Damage("parent", NODES, parent_after, "its parent is not there, or was made after it"),
    Damage("depth", NODES, cell("depth", lambda depth: depth + 1, INNER), "depth is not the parent's and one"),
    Damage("end", NODES, cell("end", True, INNER), "a path ends here, and yet goes on"),
    Damage("no end", NODES, cell("end", False, END), "the path does not end here, though it must"),
    Damage("early end", NODES, early, "the path ends here without a reason"),
    Damage("visits", NODES, cell("visits", lambda visits: visits + 1, INNER), "its visits are not those of its children"),
    Damage("value", NODES, cell("value", lambda value: value + 0.1, INNER), "its value is not the mean final reward"),
    Damage("alike", NODES, siblings_alike, "another child of its parent is the same"),
    Damage("best", TREES, cell("best", 0.5), "best and worst are not those of its paths"),
    Damage("rollouts", TREES, cell("rollouts", lambda n: n + 1), "rollouts is not its root's visits"),
    Damage(
        "too many rollouts",
        TREES,
        same,
        "its rollouts are not those of search.iterations",
        lambda said: said["facts"]["params"]["search"].update(iterations=5),
    ),
    Damage("stopped", TREES, cell("stopped", "solved"), "stopped is not what stopped it"),
    Damage("dropped", TREES, cell("stopped", "dropped"), "do not say whether it was dropped"),
    Damage("cost", TREES, cell("tokens", 1), "it cost less than its nodes did"),
    Damage("replayed", TREES, cell("replayed", 10**6), "more steps brought back a state than were taken"),
    # judgements
    Damage("step", JUDGED, without(pl.lit(True)), "the steps of the bad paths missing here"),
    Damage("step's node", JUDGED, cell("node", lambda node: node + 1), "not as in the steps of the bad paths"),
    Damage("unknown label", JUDGED, cell("label", "fine"), "label is none of bad, uncertain, good, unparsed"),
    Damage("reasons", JUDGED, cell("reasons", "So."), "reasons of a judge of kind actor_label"),
    Damage("tree's label", JUDGED, cell("tree", "uncertain"), "tree is not what the search tree says"),
    # revisions
    Damage("pair", REVISED, without(USED), "the pairs of the trees missing here"),
    Damage("shared", REVISED, cell("shared", lambda n: n + 1), "not as in the pairs of the trees"),
    Damage("bad reward", REVISED, cell("bad_reward", 0.1), "not as in the pairs of the trees"),
    Damage("first bad", REVISED, cell("first_bad", None, pl.col("first_bad").is_not_null()), "first_bad or revision_length"),
    Damage("length", REVISED, cell("revision_length", 99, USED), "first_bad or revision_length"),
    Damage("in the history", REVISED, in_the_history, "its turning point lies in the common history"),
    Damage("turn", REVISED, cell("turn", lambda n: n + 1, USED), "turn or reflection is at another place"),
    Damage("no reflection", REVISED, cell("reflection", 0, USED), "turn or reflection is at another place"),
    Damage(
        "dropped and spliced",
        REVISED,
        lambda f: cell("turns", f.filter(USED)["turns"].to_list()[0], LOST)(f),
        "it is spliced, though it has no turning point",
    ),
    Damage("turns without a turn", REVISED, cell("turn", None, USED), "it has turns, and no turning point"),
    Damage("reason", REVISED, cell("dropped", "no wish", LOST), "it is not dropped as"),
    Damage(
        "another reflection",
        REVISED,
        lambda f: cell("turns", turn(f.filter(USED)["reflection"][0], text=f"Thought: {REFLECTIONS[0]} "), USED)(f),
        "the reflection that the seed draws is not where reflection says",
    ),
    Damage("bad prefix", REVISED, cell("turns", turn(0, observation="Fine."), USED), "its first turns are not those"),
    Damage("good part", REVISED, cell("turns", lambda turns: turns[:-1], USED), "it does not say what the good path says"),
    Damage("not replayed", REVISED, cell("replayed", False, USED), "replayed is not as splice.replay says"),
    Damage("alpha", REVISED, not_good, "by alpha 0.5 and beta 0.2 it is dropped as 'replayed: not over alpha'"),
    Damage(
        "beta", REVISED, cell("bad_reward", 0.9, USED), "by alpha 0.5 and beta 0.2 it is dropped as 'replayed: not over the"
    ),
    Damage("reward", REVISED, cell("reward", 0.9, USED), "its reward is not that of its last turn"),
    Damage("message", REVISED, cell("message", "", LOST), "message does not say whether it was dropped"),
    # the training set
    Damage("no path", SFT, cell("row_id", "good/textcraft/none/7"), "neither a good path, nor a kept revision"),
    Damage("trained text", SFT, cell("texts", text_of(1, "Action: inventory")), "texts: not as it was made"),
    Damage(
        "bad learned", SFT, cell("supervised", mark(1), pl.col("origin") == "revision"), "supervised: not as it was made"
    ),
    Damage("trained reward", SFT, cell("reward", 0.9, pl.col("origin") == "good"), "reward: not as it was made"),
    Damage("left out", SFT, without(pl.col("origin") == "revision"), "that it must have, though 0 were counted as too long"),
    Damage("weight", SFT, cell("weight", lambda weight: 2 * weight), "does not count"),
    Damage("tokens", SFT, cell("n_supervised", lambda n: n + 1), "n_supervised is not the number of supervised tokens"),
    Damage("over length", SFT, cell("texts", text_of(0, "kites " * 2000)), "longer than max_length (900)"),
    Damage("fitting", SFT, without(pl.col("origin") == "good"), "rows of at most max_length (900) are missing"),
    Damage("rows of a model", SFT, without(pl.lit(True)), "moat.json says rows", at="models/actor/1"),
    # the recovery set and the plays
    Damage("cut's name", CUTS, cell("cut_id", "cut"), "cut_id is not TASK#ATTEMPT#CUT"),
    Damage("cut's task", CUTS, cell("task_id", "textcraft/none"), "its task is none in data/tasks/eval.parquet"),
    Damage("cut's length", CUTS, cell("turns", lambda turns: [*turns, turns[-1]]), "as many turns as cut_id says"),
    Damage("failed", CUTS, cell("n_failed", 0), "as many turns as cut_id says, or more than there were"),
    Damage("too many cuts", CUTS, cut_again, "more cuts of one trajectory than recovery.cuts (1)"),
    Damage("cut's end", CUTS, cell("turns", turn(-1, terminal=True)), "it keeps the turn that ended the episode"),
    Damage("play", PLAYS, without(pl.lit(True)), "1 rows of data/tasks/eval.parquet are not played"),
    Damage("unknown cut", RECOVERIES, cell("play_id", "a#1#1"), "it does not begin as a row of data/recovery.parquet"),
    Damage("given", RECOVERIES, cell("given", lambda n: n + 1), "it does not begin as a row of data/recovery.parquet"),
    Damage("play's kind", PLAYS, cell("kind", "depth 9"), "its kind is not its task's"),
    Damage("success", PLAYS, cell("success", lambda was: not was), "success: not as its turns and its reward say"),
    Damage("counted turns", PLAYS, cell("n_invalid", lambda n: n + 1), "n_invalid: not as its turns"),
    Damage("play's reward", PLAYS, cell("reward", 0.5, ~pl.col("success")), "its reward is not that of its last turn"),
    Damage("ended", PLAYS, cell("ended", "length"), "ended is 'length', and not"),
    Damage(
        "dropped for another",
        PLAYS,
        lambda f: cell("dropped", "replay")(cell("message", "x: it is another")(f)),
        "ended is not why it was dropped",
    ),
    Damage("dropped play", PLAYS, cell("dropped", "replay"), "message does not say whether it was dropped"),
)

# Where the splices are texts and the tree is the judge.
TEXTUAL = (
    Damage("label", JUDGED, cell("label", lambda own: "good" if own == "bad" else "bad"), "label is not the tree's"),
    Damage("record", REVISED, cell("turns", turn(-1, observation="Fine."), USED), "it is not the good path's record"),
    Damage("replayed", REVISED, cell("replayed", True, USED), "replayed is not as splice.replay says (off)"),
    Damage("reward", REVISED, cell("reward", 0.5, USED), "it was not replayed, and its reward is not the good path's"),
    Damage(
        "dropped",
        REVISED,
        lambda f: cell("dropped", "replayed: not over alpha", USED)(cell("message", "x", USED)(f)),
        "it was not replayed, and is dropped for what it came to",
    ),
)


def too_many_turns(path, limit):
    """A play of one turn more than the limit, each an unreadable one, counted right."""

    def change(frame):
        row = frame.to_dicts()[0]
        idle = row["turns"][0] | {"text": "Hm.", "kind": "unreadable", "action": "", "observation": "x"}
        more = [*row["turns"], *[idle] * (limit + 1 - len(row["turns"]))]
        own = {"turns": more, "n_turns": len(more), "n_invalid": row["n_invalid"] + len(more) - len(row["turns"])}
        return cell("turns", own["turns"])(cell("n_turns", own["n_turns"])(cell("n_invalid", own["n_invalid"])(frame)))

    rewrite(path, change)
