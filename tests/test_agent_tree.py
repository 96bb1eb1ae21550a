"""Choosing in a search tree and backing up: moat/agent_r/tree.py."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.agent_r.play import Turn
from moat.agent_r.tree import Tree, uct


def turn(action, reward=0.0, terminal=False, kind="action"):
    return Turn(f"Action: {action}", kind, action, "seen", 10 * reward, reward, terminal, False, False)


def tree(*actions, depth=4, c=0.25):
    """A tree whose root is expanded into these actions."""
    made = Tree("the start", depth, c)
    for action in actions:
        made.add(made.root, turn(action), 2, -1.0, simulated=False)
    made.expand(made.root)
    return made


def rolled_out(made, node, *rewards):
    """A rollout from `node` over turns of these rewards, the last of which ends the episode; returns its last node."""
    for number, reward in enumerate(rewards, 1):
        node = made.add(node, turn(f"go {number}", reward, number == len(rewards)), 2, -1.0, simulated=True)
    made.back_up(node)
    return node


def test_the_bound_is_q_and_the_square_root():
    """UCT = Q + c sqrt(ln N(parent) / N): by hand .5 + .25 sqrt(ln 8 / 2) = .5 + .25 * 1.01966…"""
    assert uct(0.5, 2, 8, 0.25) == pytest.approx(0.754917, abs=1e-6)
    assert uct(0.5, 1, 1, 0.25) == 0.5


def test_unvisited_children_come_first_in_the_order_of_making():
    """However good those are that were visited."""
    made = tree("a", "b", "c")
    for name in "abc":
        node = made.select()
        assert node.turn.action == name
        rolled_out(made, node, 1.0)


def test_the_highest_bound_is_chosen_and_of_equals_the_first():
    """N(parent) = 3, N = 1 each, so the values decide: .5, 1, 1."""
    made = tree("a", "b", "c")
    for reward in (0.5, 1.0, 1.0):
        rolled_out(made, made.select(), 0.0, reward)
    assert made.select().turn.action == "b"


def test_what_was_tried_little_is_chosen_where_c_is_large():
    """Q = .6 of 3 rollouts against .5 of 1; N(parent) = 4: c sqrt(ln 4) (1 - sqrt(1/3)) > .1 from c = .201 on."""
    for c, chosen in ((0.19, "a"), (0.21, "b")):
        made = tree("a", "b", c=c)
        a, b = made.root.children
        for start in (a, b, a, a):
            rolled_out(made, start, 0.6 if start is a else 0.5)
        assert made.select().turn.action == chosen


def test_the_final_reward_goes_to_every_node_of_the_path():
    """Two rollouts below `a`, of .2 and 1, and one below `b`, of 0; what was scored on the way does not count."""
    made = tree("a", "b")
    a, b = made.root.children
    first = rolled_out(made, a, 0.9, 0.2)
    second = rolled_out(made, first.parent, 1.0)
    rolled_out(made, b, 0.0)
    found = {node.number: (node.visits, node.value) for node in made.nodes}
    assert found[0] == (3, pytest.approx(0.4))
    assert found[a.number] == found[first.parent.number] == (2, pytest.approx(0.6))
    assert (found[first.number], found[second.number], found[b.number]) == ((1, 0.2), (1, 1.0), (1, 0.0))
    assert made.solved


def test_a_rollouts_first_turn_is_a_child_when_its_parent_is_expanded():
    """With what was backed up through it; the other nodes of the rollout stay simulated."""
    made = tree("a", depth=5)
    (a,) = made.root.children
    last = rolled_out(made, a, 0.0, 1.0)
    assert made.select() is a
    made.add(a, turn("other"), 2, -1.0, simulated=False)
    made.expand(a)
    assert [(one.turn.action, one.simulated, one.visits, one.value) for one in a.children] == [
        ("go 1", False, 1, 1.0),
        ("other", False, 0, 0.0),
    ]
    assert last.simulated
    assert made.select().turn.action == "other"


@pytest.mark.trap(44)
@pytest.mark.parametrize(
    ("kind", "action", "found"),
    [
        ("action", "GET  2\toak logs ", True),
        ("action", "get 3 oak logs", False),
        ("reflection", "", True),
        ("unreadable", "", False),
        ("action", "", False),
    ],
)
def test_turns_are_told_apart_by_what_they_do(kind, action, found):
    made = Tree("the start", 4, 0.25)
    made.add(made.root, turn("get 2 oak logs"), 2, -1.0, simulated=False)
    made.add(made.root, turn("", kind="reflection"), 2, -1.0, simulated=False)
    assert (made.root.child(kind, action) is not None) is found


def test_a_path_ends_at_the_depth_limit_and_where_the_environment_ends_it():
    made = Tree("the start", 3, 0.25)
    node = made.root
    for number in range(3):
        node = made.add(node, turn(str(number)), 2, -1.0, simulated=True)
    over = made.add(made.root, turn("over", 1.0, terminal=True), 2, -1.0, simulated=True)
    assert [one.end for one in made.nodes] == [False, False, False, True, True]
    assert [one.depth for one in made.nodes] == [0, 1, 2, 3, 1]
    assert over.turns == [over.turn]


def test_an_end_is_followed_once_and_an_exhausted_tree_is_left():
    """Both children are ends: each is chosen once, then nothing is left."""
    made = tree("a", "b", depth=1)
    for name in "ab":
        assert not made.root.exhausted
        node = made.select()
        assert node.turn.action == name
        made.back_up(node)
    assert made.root.exhausted
    with pytest.raises(ValueError, match="nothing is left"):
        made.select()


def test_a_node_whose_children_are_exhausted_is_passed_over():
    """`a` has the higher bound, and all below it is known."""
    made = tree("a", "b")
    a, b = made.root.children
    rolled_out(made, a, 1.0)
    rolled_out(made, b, 0.0, 0.0)
    made.expand(a)
    assert (a.exhausted, made.root.exhausted) == (True, False)
    assert made.select() is b


def test_a_closed_node_is_not_tried_again():
    made = tree("a", "b")
    a, b = made.root.children
    made.close(a)
    assert made.select() is b
    made.close(b)
    assert made.root.exhausted


@settings(deadline=None)
@given(st.data())
def test_visits_are_the_rollouts_through_a_node_and_its_value_is_their_mean(data):
    """Rollouts of any rewards from wherever the tree says; after each: N and Q by counting, and the children's sums.

    N(node) = sum of N(child) + the rollouts that ended at the node: none but at an end.
    """
    made, rollouts = tree(*data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1)), depth=3), []
    for _ in range(12):
        if made.root.exhausted:
            break
        node = made.select()
        if node.visits:
            for number in range(data.draw(st.integers(0, 2))):
                made.add(node, turn(f"more {number}"), 2, -1.0, simulated=False)
            made.expand(node)
            continue
        while not node.end:
            reward, over = data.draw(st.sampled_from([0.0, 0.3, 1.0])), data.draw(st.booleans())
            node = made.add(node, turn("on", reward, over), 2, -1.0, simulated=True)
        made.back_up(node)
        rollouts.append(node)
    through = {node.number: [] for node in made.nodes}
    for last in rollouts:
        node = last
        while node is not None:
            through[node.number].append(last.turn.reward)
            node = node.parent
    for node in made.nodes:
        rewards = through[node.number]
        assert node.visits == len(rewards)
        assert math.isclose(node.value, sum(rewards) / max(1, len(rewards)), abs_tol=1e-12)
        assert node.visits == (len(rewards) if node.end else sum(child.visits for child in node.children))
    assert made.solved == any(last.turn.reward >= 1 for last in rollouts)


def test_the_rows_say_what_the_tree_is():
    made = tree("a")
    rolled_out(made, made.root.children[0], 0.5)
    root, child, leaf = made.rows("task")
    assert (root["parent"], root["kind"], root["observation"], root["depth"]) == (None, "root", "the start", 0)
    assert (child["node"], child["parent"], child["action"], child["simulated"]) == (1, 0, "a", False)
    assert (leaf["parent"], leaf["reward_raw"], leaf["reward"], leaf["terminal"], leaf["simulated"]) == (
        1,
        5.0,
        0.5,
        True,
        True,
    )
    assert {row["task_id"] for row in (root, child, leaf)} == {"task"}
