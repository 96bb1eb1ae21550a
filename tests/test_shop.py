"""The shop in process: moat/worlds/shop.py."""

import hashlib
import json
from dataclasses import replace

import pytest

from moat.actions import parse
from moat.ranking import words
from moat.sessions import Available, Observed
from moat.sources.base import Metric
from moat.worlds.shop import (
    _OPTIONS,
    BUY,
    KINDS,
    PAGE,
    Goal,
    Kind,
    Product,
    Shop,
    ShopSession,
    open_session,
    record,
    reward,
    type_reward,
)

MUG = Kind(("coffee", "mug"), "kitchen", ("leak proof", "painted", "stackable"), ("color", "size"))
PAN = Kind(("frying", "pan"), "kitchen", ("non stick",), ("size",))
OFFERED = {"color": ("red", "blue"), "size": ("small", "large")}
BOUGHT = Product("B000000000", "Brenk Coffee Mug, painted", MUG, ("leak proof", "painted"), OFFERED, 2000)
WANTED = Goal(BOUGHT, ("leak proof", "painted"), {"color": "red", "size": "large"}, 2000)
CHOSEN = {"color": "red", "size": "large"}


@pytest.fixture(scope="module")
def shop():
    return Shop(0)


# --- the reward, by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bought", "chosen", "expected"),
    [
        ({}, CHOSEN, 5 / 5),  # 2 attributes, 2 options, the price
        ({"price": 2001}, CHOSEN, 4 / 5),
        ({"attributes": ("leak proof", "stackable")}, CHOSEN, 4 / 5),
        ({}, {"color": "red"}, 4 / 5),
        ({}, {"color": "large", "size": "red"}, 3 / 5),
        ({}, {"color": "blue", "size": "small"}, 3 / 5),
        ({"attributes": (), "price": 2001}, {}, 0.0),
        ({"title": "Brenk Mug"}, CHOSEN, 1.0),  # half of the nouns
        ({"title": "Brenk Pan", "kind": PAN}, CHOSEN, 0.0),  # none of the nouns, though the department is the same
    ],
)
def test_reward_by_hand(bought, chosen, expected):
    assert reward(replace(BOUGHT, **bought), chosen, WANTED) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shared", "search", "department", "expected"),
    [
        (0.0, True, True, 0.0),
        (0.05, True, True, 0.1),
        (0.1, False, False, 0.5),
        (0.2, False, False, 0.5),
        (0.2, True, False, 1.0),
        (0.15, False, True, 1.0),
        (0.21, False, False, 1.0),
        (1.0, False, False, 1.0),
    ],
)
def test_the_type_reward_is_the_published_one(shared, search, department, expected):
    assert type_reward(shared, same_search=search, same_department=department) == expected


# --- the catalogue -------------------------------------------------------------------------------------------------


def test_a_seed_makes_the_same_catalogue_and_goals_on_every_machine(shop):
    said = [f"{product.id} {product.text()} {product.price}" for product in shop.products]
    said += [shop.goal(number).instruction for number in range(20)]
    assert hashlib.sha256("\n".join(said).encode()).hexdigest()[:16] == "e650cb54080de458"


def test_another_seed_makes_another(shop):
    other = Shop(1)
    assert [product.title for product in other.products] != [product.title for product in shop.products]
    assert other.goal(0).instruction != shop.goal(0).instruction


def test_a_goal_does_not_depend_on_those_asked_before(shop):
    assert Shop(0).goal(7) == shop.goal(7)


def test_ids_are_unique(shop):
    assert len(shop.by_id) == len(shop.products) == 1000


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_word_of_a_kind_stands_in_two_attributes_or_options(kind):
    said = list(kind.nouns)
    said += [word for attribute in kind.attributes for word in set(words(attribute))]
    said += [word for option in kind.options for value in _OPTIONS[option] for word in words(value)]
    assert len(said) == len(set(said))


def test_every_family_has_its_decoys(shop):
    """Without the first attribute, without an option's first value, and much dearer."""
    for start in range(0, len(shop.products), 4):
        right, less, fewer, dearer = shop.products[start : start + 4]
        assert less.attributes == right.attributes[1:]
        assert sum(map(len, fewer.options.values())) == sum(map(len, right.options.values())) - 1
        assert dearer.price >= right.price + 4000
        assert {product.kind for product in (right, less, fewer, dearer)} == {right.kind}


def test_a_goal_is_met_by_its_product(shop):
    for number in range(100):
        goal = shop.goal(number)
        assert reward(goal.product, goal.options, goal) == 1
        assert goal.product.price < goal.limit <= goal.product.price + 4000
        assert goal.limit % 1000 == 0


def test_a_goal_has_no_negative_number(shop):
    with pytest.raises(ValueError, match="-1"):
        shop.goal(-1)


def test_search_puts_what_covers_the_query_first(shop):
    goal = shop.goal(0)
    found = shop.search(goal.wish)
    assert goal.product in found[:PAGE]
    assert set(words(goal.wish)) <= set(words(found[0].text()))
    assert shop.search("zeppelin") == ()
    assert len(shop.search("mug pan lamp")) == 50


# --- a session -----------------------------------------------------------------------------------------------------


@pytest.fixture
def session(shop):
    session = ShopSession(shop)
    session.reset(0)
    return session


def test_the_first_page_has_the_instruction_and_a_search_bar(shop):
    session = ShopSession(shop)
    wish = shop.goal(0).instruction
    assert session.reset(0) == session.observe() == f"Shop [SEP] Instruction: [SEP] {wish} [SEP] Search"
    assert session.available_actions() == Available(True, ("search",))


def test_pages_of_results_turn(session):
    first = session.step("search[mug]").observation
    assert "Page 1 (Total results: 50) [SEP] Next >" in first
    assert session.available_actions().clickables[:2] == ("back to search", "next >")
    for page in range(2, 6):
        assert f"Page {page} (Total results: 50)" in session.step("click[next >]").observation
    assert session.available_actions().clickables[:2] == ("back to search", "< prev")
    for _ in range(4):
        session.step("click[< prev]")
    assert session.observe() == first


def test_a_product_and_its_parts(shop, session):
    goal = shop.goal(0)
    session.step(f"search[{goal.wish}]")
    results = session.observe()
    page = session.step(f"click[{goal.product.id}]").observation
    assert goal.product.title in page
    assert f"Price: ${goal.product.price / 100:.2f}" in page
    values = tuple(value for offered in goal.product.options.values() for value in offered)
    assert session.available_actions() == Available(
        False, ("back to search", "< prev", "description", "features", "buy now", *values)
    )
    features = session.step("click[Features]").observation
    assert features.split(" [SEP] ")[-3:] == list(goal.product.attributes)
    assert session.available_actions() == Available(False, ("back to search", "< prev"))
    assert session.step("click[< prev]").observation == page
    assert goal.product.kind.department in session.step("click[description]").observation
    session.step("click[< prev]")
    assert session.step("click[< prev]").observation == results


def buy(session, goal, values):
    session.step(f"search[{goal.wish}]")
    session.step(f"click[{goal.product.id.lower()}]")
    for value in values:
        session.step(f"click[{value}]")
    return session.step(f"click[{BUY}]")


def test_buying_ends_the_episode_with_the_reward(shop, session):
    goal = shop.goal(0)
    bought = buy(session, goal, goal.options.values())
    assert bought == Observed("Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0000", 1.0, True)
    assert (session.reward, session.done) == (1.0, True)
    assert session.available_actions() == Available(False, ())


def test_an_option_not_chosen_costs_its_share(shop, session):
    goal = shop.goal(0)
    n = len(goal.attributes) + len(goal.options) + 1
    assert buy(session, goal, list(goal.options.values())[1:]).reward == pytest.approx((n - 1) / n)


def test_the_last_choice_of_an_option_counts(shop, session):
    goal = shop.goal(0)
    name = next(iter(goal.options))
    other = next(value for value in goal.product.options[name] if value != goal.options[name])
    assert buy(session, goal, [other, *goal.options.values()]).reward == 1
    session.reset(0)
    assert buy(session, goal, [*goal.options.values(), other]).reward < 1


def test_leaving_a_product_forgets_its_options(shop, session):
    goal = shop.goal(0)
    session.step(f"search[{goal.wish}]")
    session.step(f"click[{goal.product.id}]")
    for value in goal.options.values():
        session.step(f"click[{value}]")
    session.step("click[< prev]")
    session.step(f"click[{goal.product.id}]")
    n = len(goal.attributes) + len(goal.options) + 1
    assert session.step("click[buy now]").reward == pytest.approx((n - len(goal.options)) / n)


@pytest.mark.parametrize(
    "action", ["", "search[]", "search", "buy", "click[buy now]", "click[nothing]", "look[around]", "click[search]"]
)
def test_an_action_that_does_not_apply_does_nothing(session, action):
    before = session.observe()
    assert session.step(action) == Observed(before, 0.0, False)


def test_a_search_needs_the_search_page(session):
    session.step("search[mug]")
    before = session.observe()
    assert session.step("search[pan]").observation == before


@pytest.mark.trap(43)
def test_a_step_after_the_end_is_an_error(shop, session):
    buy(session, shop.goal(0), [])
    with pytest.raises(ValueError, match="over"):
        session.step("search[mug]")
    session.reset(1)
    assert not session.done
    assert session.reward == 0


def test_nothing_is_done_before_a_reset(shop):
    for call in (lambda: ShopSession(shop).step("search[mug]"), ShopSession(shop).observe):
        with pytest.raises(ValueError, match="reset"):
            call()


# --- tasks ---------------------------------------------------------------------------------------------------------


def test_a_goal_as_a_task(shop):
    task = record(shop, 3)
    assert (task.number, task.domain, task.metric, task.gold_answer) == (4, "webshop", Metric.REWARD, "1")
    assert task.text == shop.goal(3).instruction
    assert json.loads(task.context) == {"shop": {"seed": 0, "families": 250, "goal": 3}}
    assert [action.tool for action in parse(task.actions)][:3] == ["Search", "FeatureRetrieve", "Pick"]
    assert "; ".join(turn.actions for turn in task.turns) == task.actions
    assert task.subgoals.count("Subgoal ") == len(task.turns)


def test_the_session_of_a_task_is_found_by_its_context(shop):
    session = open_session(record(shop, 3).context)
    assert session.goal == shop.goal(3)
    assert session.observe() == ShopSession(shop).reset(3)


@pytest.mark.parametrize(
    "context",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"shop": 3}',
        '{"shop": {"seed": 0, "families": 250}}',
        '{"shop": {"seed": "0", "families": 250, "goal": 1}}',
        '{"shop": {"seed": 0, "families": 250, "goal": 1.5}}',
        '{"shop": {"seed": 0, "families": 0, "goal": 1}}',
        '{"shop": {"seed": 0, "families": 1000000000, "goal": 1}}',
        '{"shop": {"seed": 0, "families": 250, "goal": -1}}',
        "[" * 100_000,
    ],
)
def test_a_context_that_names_no_place_is_refused(context):
    with pytest.raises(ValueError, match=r"no place|numbered from 0"):
        open_session(context)
