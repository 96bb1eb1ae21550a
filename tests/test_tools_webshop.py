"""A customer's steps in a shop: moat/tools/webshop.py."""

import pytest

from moat.actions import parse
from moat.sessions import Available, Observed, episode_reward, reward_metrics
from moat.toolbox import Goal, Toolbox, ToolboxError
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.docs import DOCS
from moat.tools.webshop import MAX_QUERY, best_fit, listed, webshop_tools
from moat.worlds.shop import Shop, ShopSession, record

WISH = "Instruction: [SEP] i want a red mug, leak proof, under $30"
RESULTS_PAGE = (
    f"{WISH} [SEP] Back to Search [SEP] Page 1 (Total results: 3) [SEP] B000000001 [SEP] Blue Mug [SEP] $10.00 [SEP] "
    "B000000002 [SEP] Red Mug [SEP] $1,020.00 [SEP] B000000003 [SEP] Red Cup [SEP] $20.00 to $40.00"
)
PRODUCTS = {
    "b000000001": ("Blue Mug", "$10.00", ("blue", "green"), "leak proof"),
    "b000000002": ("Red Mug", "$1,020.00", ("red",), "leak proof"),
    "b000000003": ("Red Cup", "$20.00 to $40.00", ("red", "rose"), "painted"),
}


class Till:
    """A session of three products, written out: WebShop's texts and buttons, a reward of 0.75 for any purchase."""

    def __init__(self):
        self.page, self.reward, self.done, self.actions = "search", 0.0, False, []

    def reset(self, task):
        self.__init__()
        return self.observe()

    def available_actions(self):
        if self.page == "search":
            return Available(True, ("search",))
        if self.page == "results":
            return Available(False, ("back to search", *PRODUCTS))
        if self.page.endswith("features"):
            return Available(False, ("back to search", "< prev"))
        return Available(False, ("back to search", "< prev", "features", "buy now", *PRODUCTS[self.page][2]))

    def observe(self):
        if self.page == "search":
            return f"WebShop [SEP] {WISH} [SEP] Search"
        if self.page == "results":
            return RESULTS_PAGE
        title, price, colors, feature = PRODUCTS[self.page.split()[0]]
        head = f"{WISH} [SEP] Back to Search [SEP] < Prev [SEP]"
        if self.page.endswith("features"):
            return f"{head} {feature}"
        return f"{head} color [SEP] {' [SEP] '.join(colors)} [SEP] {title} [SEP] Price: {price} [SEP] Features [SEP] Buy Now"

    def step(self, action):
        self.actions.append(action)
        if action.startswith("search["):
            self.page = "results"
        elif action == "click[back to search]":
            self.page = "search"
        elif action == "click[features]":
            self.page = f"{self.page} features"
        elif action == "click[< prev]":
            self.page = self.page.split()[0] if " " in self.page else "results"
        elif action == "click[buy now]":
            self.reward, self.done = 0.75, True
        elif action[6:-1] in PRODUCTS:
            self.page = action[6:-1]
        return Observed(self.observe(), self.reward, self.done)

    def close(self):
        pass


def at(*actions):
    session = Till()
    for action in actions:
        session.step(action)
    session.actions.clear()
    return session


ON_RESULTS = ("search[mug]",)
ON_PRODUCT = ("search[mug]", "click[b000000003]")
RESULTS = {"R1": RESULTS_PAGE, "R2": "no products here"}


def run(session, name, arguments, results=RESULTS):
    return webshop_tools(session)[name](arguments, results)


def kind(session, name, arguments):
    with pytest.raises(ToolError) as caught:
        run(session, name, arguments)
    return caught.value.kind


def test_the_tools_are_those_that_the_documentation_names():
    assert list(webshop_tools(Till())) == list(DOCS["webshop"])


# --- what every tool refuses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["Search", "Pick", "Click"])
@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        ("", ToolErrorKind.BAD_ARGUMENT),
        ("Env", ToolErrorKind.BAD_ARGUMENT),
        ("Env, mug", ToolErrorKind.BAD_ARGUMENT),
        ("Env QUERY: mug", ToolErrorKind.BAD_ARGUMENT),
        ("QUERY: mug", ToolErrorKind.BAD_ARGUMENT),
        ("Shop, QUERY: mug", ToolErrorKind.BAD_ARGUMENT),
        ("R01, QUERY: mug", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY:", ToolErrorKind.BAD_ARGUMENT),
        ("Env, QUERY:  \n ", ToolErrorKind.BAD_ARGUMENT),
        ("Env, Query: mug", ToolErrorKind.BAD_ARGUMENT),
        (f"Env, QUERY: {'x' * (MAX_QUERY + 1)}", ToolErrorKind.SIZE),
        ("Env, QUERY: " + "x" * 1_000_000, ToolErrorKind.SIZE),
    ],
)
def test_arguments_that_no_tool_takes(tool, arguments, failure):
    session = at(*ON_RESULTS)
    assert kind(session, tool, arguments) is failure
    assert session.actions == []


@pytest.mark.trap(43)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("Search", "Env, QUERY: mug"), ("FeatureRetrieve", "Env"), ("Pick", "R1, QUERY: mug"), ("Click", "R1, QUERY: red")],
)
def test_nothing_is_done_after_the_purchase(tool, arguments):
    session = at(*ON_PRODUCT, "click[buy now]")
    assert kind(session, tool, arguments) is ToolErrorKind.NO_RESULT
    assert session.actions == []
    assert episode_reward(session) == 0.75


# --- Search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ("Env, QUERY: red mug", "search[red mug]"),
        ("Env,QUERY:red mug", "search[red mug]"),
        ("R1, QUERY: red mug", "search[red mug]"),
        ("  R2  ,  QUERY:   red \n mug  ", "search[red mug]"),
        ("Env, QUERY: mug, red, $30", "search[mug, red, $30]"),
        ("Env, QUERY: a mug (large) [new]", "search[a mug (large) [new]]"),
        ("Env, QUERY: QUERY: mug", "search[QUERY: mug]"),
        ("Env, QUERY: tasse à café", "search[tasse à café]"),
    ],
)
def test_search(arguments, action):
    session = Till()
    assert run(session, "Search", arguments) == RESULTS_PAGE
    assert session.actions == [action]


@pytest.mark.parametrize("before", [ON_RESULTS, ON_PRODUCT, (*ON_PRODUCT, "click[features]")])
def test_search_goes_back_to_the_search_bar(before):
    session = at(*before)
    assert run(session, "Search", "R1, QUERY: cup") == RESULTS_PAGE
    assert session.actions == ["click[back to search]", "search[cup]"]


# --- FeatureRetrieve -----------------------------------------------------------------------------------------------

FEATURES = (
    "B000000001 [SEP] color [SEP] blue [SEP] green [SEP] Blue Mug [SEP] Price: $10.00 [SEP] leak proof\n"
    "B000000002 [SEP] color [SEP] red [SEP] Red Mug [SEP] Price: $1,020.00 [SEP] leak proof\n"
    "B000000003 [SEP] color [SEP] red [SEP] rose [SEP] Red Cup [SEP] Price: $20.00 to $40.00 [SEP] painted"
)


@pytest.mark.parametrize("arguments", ["Env", "R1", "R2", " R1 ", "\tEnv\n", "R99"])
def test_features_of_every_product_on_the_page(arguments):
    session = at(*ON_RESULTS)
    assert run(session, "FeatureRetrieve", arguments) == FEATURES
    assert session.observe() == RESULTS_PAGE


def test_the_wish_itself_is_no_feature():
    """The page of every product repeats the instruction, which has all the words of the wish."""
    assert "Instruction" not in FEATURES
    assert "i want" not in run(at(*ON_RESULTS), "FeatureRetrieve", "R1")


def test_each_product_is_opened_and_left():
    session = at(*ON_RESULTS)
    run(session, "FeatureRetrieve", "R1")
    once = ["click[{}]", "click[features]", "click[< prev]", "click[< prev]"]
    assert session.actions == [action.format(product) for product in PRODUCTS for action in once]


@pytest.mark.parametrize(
    "arguments",
    ["", "R0", "R1, R2", "R1, QUERY: mug", "page", "env", "Env R1", "[R1]", "R1.", "R01", "QUERY: x", "R", "RR1", "R-1"],
)
def test_features_take_a_page_alone(arguments):
    assert kind(at(*ON_RESULTS), "FeatureRetrieve", arguments) is ToolErrorKind.BAD_ARGUMENT


@pytest.mark.parametrize("before", [(), ON_PRODUCT, (*ON_PRODUCT, "click[features]")])
def test_no_products_no_features(before):
    assert kind(at(*before), "FeatureRetrieve", "Env") is ToolErrorKind.NO_RESULT


# --- Pick ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "product"),
    [
        ("green", "b000000001"),
        ("Blue Mug", "b000000001"),
        ("red mug", "b000000002"),
        ("a red mug, leak proof", "b000000002"),
        ("a red mug, leak proof, price lower than 30.00 dollars", "b000000001"),
        ("red mug, price lower than 30.00 dollars", "b000000001"),  # `red` and `mug` are equally rare: the first on the page
        ("red, and price lower than 30.00 dollars", "b000000003"),
        ("red under $30", "b000000003"),
        ("red cheaper than 25 dollars", "b000000003"),
        ("red below 2000", "b000000002"),
        ("red, at most $19.99", None),
        ("painted", "b000000003"),
        ("rose", "b000000003"),
        ("something red", "b000000002"),
        ("leak proof", "b000000001"),
        ("leak proof and red", "b000000002"),
        ("under the sea painted", "b000000003"),
        ("umbrella", None),
        ("mug under $5", None),
        ("???", None),
    ],
)
def test_pick_by_features(wish, product):
    session = at(*ON_RESULTS)
    results = {"R2": FEATURES}
    if product is None:
        with pytest.raises(ToolError) as caught:
            run(session, "Pick", f"R2, QUERY: {wish}", results)
        assert caught.value.kind is ToolErrorKind.NO_RESULT
        assert session.page == "results"
    else:
        assert PRODUCTS[product][0] in run(session, "Pick", f"R2, QUERY: {wish}", results)
        assert session.page == product


@pytest.mark.parametrize("page", ["R1", "Env"])
def test_pick_by_titles_where_there_are_no_features(page):
    session = at(*ON_RESULTS)
    run(session, "Pick", f"{page}, QUERY: red cup")
    assert session.page == "b000000003"


@pytest.mark.parametrize(
    ("before", "arguments"), [(ON_RESULTS, "R2, QUERY: mug"), ((), "R1, QUERY: mug"), (ON_PRODUCT, "R1, QUERY: mug")]
)
def test_pick_needs_products_that_are_on_the_page(before, arguments):
    assert kind(at(*before), "Pick", arguments) is ToolErrorKind.NO_RESULT


def test_products_listed_in_a_page_and_in_features():
    assert listed(RESULTS_PAGE) == {
        "B000000001": "Blue Mug $10.00",
        "B000000002": "Red Mug $1,020.00",
        "B000000003": "Red Cup $20.00 to $40.00",
    }
    assert listed(FEATURES)["B000000003"] == "color red rose Red Cup Price: $20.00 to $40.00 painted"
    assert listed("nothing") == {}


def test_of_equal_products_the_first_is_picked():
    assert best_fit("mug", {"B2": "mug", "B1": "mug"}) == "B2"


def test_a_product_without_a_price_is_not_ruled_out():
    assert best_fit("mug under $5", {"B1": "cup", "B2": "mug"}) == "B2"


# --- Click ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "query", "action"),
    [
        (ON_PRODUCT, "red", "click[red]"),
        (ON_PRODUCT, "RED", "click[red]"),
        (ON_PRODUCT, "color: red", "click[red]"),
        (ON_PRODUCT, "the rose one", "click[rose]"),
        (ON_PRODUCT, "Features", "click[features]"),
        (ON_PRODUCT, "< Prev", "click[< prev]"),
        (ON_PRODUCT, "prev", "click[< prev]"),
        (ON_PRODUCT, "Back to Search", "click[back to search]"),
        (ON_RESULTS, "B000000002", "click[b000000002]"),
        (ON_RESULTS, "b000000003", "click[b000000003]"),
        (ON_RESULTS, "open B000000001", "click[b000000001]"),
        ((), "Search", "click[search]"),
    ],
)
def test_click(before, query, action):
    session = at(*before)
    said = run(session, "Click", f"R1, QUERY: {query}")
    assert session.actions == [action]
    assert said == session.observe()


@pytest.mark.parametrize("query", ["Buy Now", "buy now", "Buy it now", "buy", "BUY NOW "])
def test_the_purchase_gives_the_reward_as_text(query):
    session = at(*ON_PRODUCT)
    assert run(session, "Click", f"R1, QUERY: {query}") == "0.75"
    assert session.done


@pytest.mark.parametrize(
    ("before", "query"),
    [(ON_PRODUCT, "green"), (ON_RESULTS, "buy now"), ((), "red"), (ON_PRODUCT, "???"), (ON_RESULTS, "<")],
)
def test_click_on_what_is_not_there(before, query):
    session = at(*before)
    assert kind(session, "Click", f"Env, QUERY: {query}") is ToolErrorKind.NO_RESULT
    assert session.actions == []


def test_a_fault_of_the_session_is_passed_on():
    session = at(*ON_PRODUCT)

    def broken(action):
        raise RuntimeError("the server is gone")

    session.step = broken
    with pytest.raises(RuntimeError, match="gone"):
        run(session, "Click", "Env, QUERY: red")


# --- the shop in process -------------------------------------------------------------------------------------------


def play(session, text):
    """Runs an action text without the executor; the last result."""
    tools, results = webshop_tools(session), {}
    for action in parse(text):
        results[action.name] = tools[action.tool](action.arguments, results)
    return results[action.name]


@pytest.fixture(scope="module")
def shop():
    return Shop(0)


def test_gold_actions_reach_the_full_reward_on_every_goal(shop):
    session = ShopSession(shop)
    missed = []
    for number in range(500):
        session.reset(number)
        task = record(shop, number)
        if play(session, task.actions) != task.gold_answer or episode_reward(session) != 1:
            missed.append(number)
    assert missed == []


def test_gold_actions_reach_it_under_other_seeds_and_sizes():
    for seed, families in ((1, 250), (2, 40)):
        shop = Shop(seed, families)
        session = ShopSession(shop)
        for number in range(40):
            session.reset(number)
            assert play(session, record(shop, number).actions) == "1"


@pytest.mark.trap(36)
def test_actions_that_buy_nothing_are_worth_nothing_and_count(shop):
    session = ShopSession(shop)
    worth = []
    for number in range(4):
        session.reset(number)
        actions = record(shop, number).actions
        play(session, actions if number % 2 else actions[: actions.rindex(";")])
        worth.append(episode_reward(session))
    assert worth == [0, 1, 0, 1]
    assert reward_metrics(worth).mean_reward == 0.5


def test_buying_the_first_product_found_is_worth_less(shop):
    """The decoys matter: without reading features and price, some purchases miss."""
    session = ShopSession(shop)
    worth = []
    for number in range(60):
        session.reset(number)
        name = shop.goal(number).product.kind.name
        play(session, f"R1 = Search(Env, QUERY: {name}); R2 = Pick(R1, QUERY: model); R3 = Click(R2, QUERY: Buy Now)")
        worth.append(episode_reward(session))
    assert 0 < sum(worth) / 60 < 0.8


@pytest.mark.parametrize(
    "context",
    [
        '{"shop": 3}',
        '{"shop": {"seed": 0, "families": 100000000, "goal": 0}}',
        '{"shop": {"seed": 0, "families": 2, "goal": -1}}',
        '{"shop": {"seed": "a", "families": 2, "goal": 1}}',
        "[" * 100_000,
    ],
)
def test_a_context_that_names_no_goal_is_refused_before_a_shop_is_made(context):
    """A task of a user's own file: an error of ours, no bug's, and no catalogue that fills the memory."""
    with pytest.raises(ToolboxError, match="context of a webshop task"):
        Toolbox().execute("R1 = Search(Env, QUERY: mug)", Goal("webshop", "1", context=context))
