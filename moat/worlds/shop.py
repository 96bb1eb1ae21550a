"""A shop in this process, in the manner of WebShop. It is not WebShop: its products are made up, its scores are its own.

What is WebShop's (Yao et al. 2022, arXiv 2207.01206): the pages (search, results of ten, product, description, features),
the actions `search[words]` and `click[button]`, the text of observations (parts joined by ` [SEP] `), and the reward

    r = r_type * (|goal attributes had| + |goal options chosen| + [price within the limit])
               / (|goal attributes| + |goal options| + 1)

with r_type 0 when the titles share none of the goal title's nouns, 0.1 when they share less than a tenth of them, 0.5 when
at most a fifth and neither search category nor department agree, and 1 otherwise (section 3.1 and the appendix on rewards).
What is not: here attributes and options match exactly and the nouns are known, where WebShop matches fuzzily and tags
parts of speech. There is one seed for the catalogue and its goals, and every machine makes the same.

A catalogue is made of families: a product, and decoys that lack an attribute, lack an option's value, or cost too much for
the goal. In the words of a kind of product, no word stands in two attributes or options, so a product whose text has every
word of a wish is one that fits it. Prices are whole cents.

A goal that the gold query does not bring to the first page is drawn again, so the gold actions reach reward 1 on each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from moat.ranking import words
from moat.seeds import generator
from moat.sessions import Available, Observed
from moat.sources.base import Metric, Record, Turn, plan

PAGE = 10  # products on a page of results
FOUND = 50  # products that a search finds at most
N_FAMILIES = 250  # of four products each
MAX_FAMILIES = 25_000  # a catalogue of this size takes seconds to make
SEPARATOR = " [SEP] "
BUY, PREVIOUS, NEXT, BACK = "buy now", "< prev", "next >", "back to search"
DESCRIPTION, FEATURES = "description", "features"

_ACTION = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)
_BRANDS = ("Alvora", "Brenk", "Corvane", "Dellmoor", "Estavik", "Fennel Bay", "Gorlan", "Hivewick", "Istrana", "Jolpen")
_OPTIONS = {
    "color": ("red", "blue", "green", "black", "white", "yellow", "purple", "orange"),
    "size": ("tiny", "small", "medium", "large", "huge"),
    "pack": ("single", "pair", "trio", "dozen"),
    "scent": ("lavender", "vanilla", "cedar", "mint", "unscented"),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product: its nouns (the last one names it), its department, its attributes and the names of its options."""

    nouns: tuple[str, ...]
    department: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """What a customer calls it."""
        return " ".join(self.nouns)


KINDS = (
    Kind(
        ("coffee", "mug"),
        "kitchen",
        ("dishwasher safe", "hand painted", "double walled", "leak proof", "stackable"),
        ("color", "size"),
    ),
    Kind(
        ("water", "bottle"),
        "kitchen",
        ("vacuum insulated", "leak proof", "bpa free", "wide mouth", "foldable"),
        ("color", "size"),
    ),
    Kind(("frying", "pan"), "kitchen", ("non stick", "oven safe", "cast iron", "induction ready", "lightweight"), ("size",)),
    Kind(
        ("table", "lamp"),
        "home",
        ("dimmable", "battery powered", "touch control", "energy saving", "adjustable neck"),
        ("color",),
    ),
    Kind(
        ("throw", "pillow"),
        "home",
        ("machine washable", "memory foam", "hypoallergenic", "double sided", "hidden zipper"),
        ("color", "size"),
    ),
    Kind(
        ("scented", "candle"),
        "home",
        ("long lasting", "soy wax", "smoke free", "hand poured", "cotton wick"),
        ("scent", "pack"),
    ),
    Kind(
        ("running", "shoes"),
        "clothing",
        ("slip resistant", "arch support", "breathable", "reflective", "wide toe"),
        ("color", "size"),
    ),
    Kind(
        ("rain", "jacket"),
        "clothing",
        ("water repellent", "wind proof", "hooded", "packable", "fleece lined"),
        ("color", "size"),
    ),
    Kind(
        ("wool", "socks"),
        "clothing",
        ("moisture wicking", "cushioned", "seamless", "odor control", "knee high"),
        ("color", "pack"),
    ),
    Kind(
        ("bath", "soap"),
        "beauty",
        ("cruelty free", "vegan certified", "plant based", "moisturizing", "exfoliating"),
        ("scent", "pack"),
    ),
    Kind(
        ("hand", "cream"),
        "beauty",
        ("fast absorbing", "fragrance mild", "shea butter", "travel sized", "dermatologist tested"),
        ("scent", "pack"),
    ),
    Kind(
        ("phone", "case"),
        "electronics",
        ("shock absorbing", "scratch resistant", "magnetic", "card holder", "slim fit"),
        ("color",),
    ),
)


@dataclass(frozen=True, slots=True)
class Product:
    """One product. `options` maps an option's name to the values on offer; `price` is in cents."""

    id: str
    title: str
    kind: Kind
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: int

    def text(self) -> str:
        """All that its pages say of it, but for the price: what a search looks through."""
        values = " ".join(value for offered in self.options.values() for value in offered)
        return f"{self.title} {self.kind.department} {' '.join(self.attributes)} {values}"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants: a product like `product`, with these attributes and options, for at most `limit` cents."""

    product: Product
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    limit: int

    @property
    def instruction(self) -> str:
        """The wish in a customer's words."""
        options = "".join(f", and {name}: {value}" for name, value in self.options.items())
        return f"i want a {self.product.kind.name} that is {' and '.join(self.attributes)}{options}, and {self.price_wish}"

    @property
    def price_wish(self) -> str:
        """The price limit as the instruction says it."""
        return f"price lower than {dollars(self.limit)} dollars"

    @property
    def wish(self) -> str:
        """What is wanted, without the price: the gold search."""
        return " ".join([self.product.kind.name, *self.attributes, *self.options.values()])


def dollars(cents: int) -> str:
    """`1250` → `12.50`."""
    return f"{cents // 100}.{cents % 100:02d}"


def type_reward(shared: float, *, same_search: bool, same_department: bool) -> float:
    """WebShop's r_type: `shared` is the share of the goal title's nouns that the bought product's title has."""
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    if shared <= 0.2 and not same_search and not same_department:
        return 0.5
    return 1.0


def reward(bought: Product, chosen: Mapping[str, str], goal: Goal) -> float:
    """The reward of buying a product with the chosen options, from 0 to 1: the formula of this module's docstring."""
    attributes = len(set(goal.attributes) & set(bought.attributes))
    options = sum(chosen.get(name) == value for name, value in goal.options.items())
    within = bought.price <= goal.limit
    share = (attributes + options + within) / (len(goal.attributes) + len(goal.options) + 1)
    wanted = goal.product.kind
    nouns = set(wanted.nouns)
    r_type = type_reward(
        len(nouns & set(words(bought.title))) / len(nouns),
        same_search=bought.kind.name == wanted.name,
        same_department=bought.kind.department == wanted.department,
    )
    return r_type * share


class Shop:
    """The catalogue and the goals of a seed. `families` is the number of product families, four products each."""

    def __init__(self, seed: int, families: int = N_FAMILIES) -> None:
        self.seed = seed
        self.products = tuple(product for number in range(families) for product in _family(seed, number))
        self.by_id = {product.id: product for product in self.products}
        self._goals: dict[int, Goal] = {}

    @cached_property
    def _index(self) -> dict[str, list[int]]:
        """Places of the products that have a word, by word."""
        index: dict[str, list[int]] = {}
        for place, product in enumerate(self.products):
            for word in dict.fromkeys(words(product.text())):
                index.setdefault(word, []).append(place)
        return index

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that share a word with the query, the best first, at most FOUND; equals in catalogue order.

        Each distinct word of the query that a product has counts as the catalogue's size over the number of products with
        that word: a quotient, not a logarithm, so that every machine ranks alike.
        """
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words(query)):
            places = self._index.get(word, [])
            for place in places:
                scores[place] = scores.get(place, 0.0) + len(self.products) / len(places)
        order = sorted(scores, key=lambda place: (-scores[place], place))
        return tuple(self.products[place] for place in order[:FOUND])

    def goal(self, number: int) -> Goal:
        """Goal `number`, from 0, without end; the same at each call. Raises ValueError for a negative number."""
        if number < 0:
            raise ValueError(f"goals are numbered from 0, not {number}")
        if number not in self._goals:
            attempt = 0
            while True:
                goal = self._draw(number, attempt)
                if goal.product in self.search(goal.wish)[:PAGE]:
                    break
                attempt += 1
            self._goals[number] = goal
        return self._goals[number]

    def _draw(self, number: int, attempt: int) -> Goal:
        rng = generator("shop goal", self.seed, number, attempt)
        product = self.products[int(rng.integers(len(self.products)))]
        n_attributes = int(rng.integers(1, min(3, len(product.attributes)) + 1))
        attributes = [product.attributes[i] for i in sorted(rng.permutation(len(product.attributes))[:n_attributes])]
        options = {name: offered[int(rng.integers(len(offered)))] for name, offered in product.options.items()}
        # as in WebShop: one of the round prices that come next
        limit = (product.price // 1000 + int(rng.integers(1, 5))) * 1000
        return Goal(product, tuple(attributes), options, limit)


def _family(seed: int, number: int) -> list[Product]:
    """A product and three decoys: without its first attribute, without an option's value, and much dearer."""
    rng = generator("shop family", seed, number)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    has = [kind.attributes[i] for i in sorted(rng.permutation(len(kind.attributes))[:3])]
    options = {}
    for name in kind.options:
        values = _OPTIONS[name]
        options[name] = tuple(values[i] for i in sorted(rng.permutation(len(values))[:3]))
    price = int(rng.integers(500, 6000))
    changed = kind.options[int(rng.integers(len(kind.options)))]
    variants = (
        (has, options, price),
        (has[1:], options, price - int(rng.integers(1, 300))),
        (has, options | {changed: options[changed][1:]}, price + int(rng.integers(1, 300))),
        (has, options, price + int(rng.integers(4000, 6000))),
    )
    products = []
    for place, (attributes, offered, cents) in enumerate(variants):
        brand = _BRANDS[int(rng.integers(len(_BRANDS)))]
        title = f"{brand} {kind.name.title()}, {attributes[-1]}, model {number * len(variants) + place}"
        products.append(Product(_id(number, place), title, kind, tuple(attributes), offered, cents))
    return products


def _id(family: int, place: int) -> str:
    return f"B{family:08d}{place}"


class ShopSession:
    """One customer in the shop: the session interface of `moat.sessions`. An action that does not apply does nothing."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.goal: Goal | None = None
        self.reward = 0.0
        self.done = False
        self._chosen: dict[str, str] = {}
        self._show()

    def _show(
        self,
        found: Sequence[Product] | None = None,
        first: int = 0,
        product: Product | None = None,
        part: str = "",
    ) -> None:
        """Go to a page: the search page without arguments, results, a product, or one part of a product's page."""
        self._found, self._first, self._product, self._part = found, first, product, part

    def reset(self, task: int) -> str:
        """Begin with goal number `task`; returns the search page. Raises ValueError for a negative number."""
        self.goal = self.shop.goal(task)
        self.reward, self.done = 0.0, False
        self._chosen = {}
        self._show()
        return self.observe()

    def step(self, action: str) -> Observed:
        """Do `search[words]` or `click[button]`. Raises ValueError before a reset and after the end."""
        goal = self._goal()
        if self.done:
            raise ValueError("the episode is over: reset the session before another action")
        match = _ACTION.fullmatch(action.strip())
        available = self.available_actions()
        if match is not None and match[1] == "search" and available.search:
            self._chosen = {}
            self._show(self.shop.search(match[2]))
        elif match is not None and match[1] == "click" and match[2].lower().strip() in available.clickables:
            self._click(match[2].lower().strip(), goal)
        return Observed(self.observe(), self.reward, self.done)

    def _click(self, button: str, goal: Goal) -> None:
        product = self._product
        if button == "search":  # the bar's own button: WebShop lists it, and it does nothing without words
            return
        if button == BACK:
            self._chosen = {}
            self._show()
        elif button == NEXT:
            self._show(self._found, self._first + PAGE)
        elif button == PREVIOUS:
            if self._part:
                self._show(self._found, self._first, product)
            elif product is not None:
                self._chosen = {}
                self._show(self._found, self._first)
            else:
                self._show(self._found, self._first - PAGE)
        elif button == BUY and product is not None:
            self.reward, self.done = reward(product, self._chosen, goal), True
        elif button in (DESCRIPTION, FEATURES):
            self._show(self._found, self._first, product, button)
        elif product is not None:
            name = next(name for name, offered in product.options.items() if button in offered)
            self._chosen |= {name: button}
        else:
            self._show(self._found, self._first, self.shop.by_id[button.upper()])

    def observe(self) -> str:
        """The page as text. Raises ValueError before a reset."""
        goal = self._goal()
        head = ["Instruction:", goal.instruction]
        if self.done:
            return SEPARATOR.join(["Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", f"{self.reward:.4f}"])
        if self._found is None:
            return SEPARATOR.join(["Shop", *head, "Search"])
        parts = [*head, "Back to Search"]
        if self._product is None:
            parts.append(f"Page {self._first // PAGE + 1} (Total results: {len(self._found)})")
            parts += [button.title() for button in self._turns()]
            for product in self._found[self._first : self._first + PAGE]:
                parts += [product.id, product.title, f"${dollars(product.price)}"]
        elif self._part == DESCRIPTION:
            parts += ["< Prev", f"A {self._product.kind.name} from our {self._product.kind.department} department."]
        elif self._part == FEATURES:
            parts += ["< Prev", *self._product.attributes]
        else:
            parts.append("< Prev")
            for name, offered in self._product.options.items():
                parts += [name, *offered]
            parts += [self._product.title, f"Price: ${dollars(self._product.price)}", "Description", "Features", "Buy Now"]
        return SEPARATOR.join(parts)

    def available_actions(self) -> Available:
        """What can be done on the page, as WebShop lists it, in lower case. Nothing after the end."""
        if self.done:
            return Available(search=False, clickables=())
        if self._found is None:
            return Available(search=True, clickables=("search",))
        if self._product is None:
            ids = [product.id.lower() for product in self._found[self._first : self._first + PAGE]]
            return Available(search=False, clickables=(BACK, *self._turns(), *ids))
        if self._part:
            return Available(search=False, clickables=(BACK, PREVIOUS))
        values = [value for offered in self._product.options.values() for value in offered]
        return Available(search=False, clickables=(BACK, PREVIOUS, DESCRIPTION, FEATURES, BUY, *values))

    def close(self) -> None:
        """Nothing is held."""

    def _turns(self) -> list[str]:
        """Buttons to the next and the previous page of results."""
        more = self._found is not None and self._first + PAGE < len(self._found)
        return [NEXT] * more + [PREVIOUS] * (self._first > 0)

    def _goal(self) -> Goal:
        if self.goal is None:
            raise ValueError("the session has no task yet: reset it first")
        return self.goal


def open_session(context: str) -> ShopSession:
    """The session of a task, reset to its goal, from the text of its column `context`. Raises ValueError."""
    try:
        place = json.loads(context)["shop"]
        seed, families, goal = (place[key] for key in ("seed", "families", "goal"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"the context is no place in the shop: {context[:100]!r}") from error
    if not all(type(number) is int for number in (seed, families, goal)) or not 1 <= families <= MAX_FAMILIES:
        raise ValueError(f"the context is no place in the shop: {context[:100]!r}")
    session = ShopSession(_shop(seed, families))
    session.reset(goal)
    return session


@lru_cache(maxsize=4)
def _shop(seed: int, families: int) -> Shop:
    return Shop(seed, families)


def gold_turns(goal: Goal) -> tuple[Turn, ...]:
    """Subgoals and the actions of the tools of `webshop` that reach reward 1 on a goal, turn by turn."""
    name = goal.product.kind.name
    wanted = f"{goal.wish}, {goal.price_wish}"
    turns = [
        Turn(f"Search for a {name} that is {' and '.join(goal.attributes)}", f"R1 = Search(Env, QUERY: {goal.wish})"),
        Turn(f"Pick the {name} that fits best by its features", f"R2 = FeatureRetrieve(R1); R3 = Pick(R2, QUERY: {wanted})"),
    ]
    last = 3
    for option, value in goal.options.items():
        turns.append(Turn(f"Choose the {option} {value}", f"R{last + 1} = Click(R{last}, QUERY: {value})"))
        last += 1
    turns.append(Turn("Buy it", f"R{last + 1} = Click(R{last}, QUERY: Buy Now)"))
    return tuple(turns)


def record(shop: Shop, number: int) -> Record:
    """Goal `number` as a task of source kind `shop`; its context names seed, families and goal, its gold answer is `1`."""
    goal = shop.goal(number)
    turns = gold_turns(goal)
    families = len(shop.products) // 4
    return Record(
        number=number + 1,
        text=goal.instruction,
        domain="webshop",
        metric=Metric.REWARD,
        gold_answer="1",
        subgoals=plan([turn.subgoal for turn in turns]),
        actions="; ".join(turn.actions for turn in turns),
        turns=turns,
        context=json.dumps({"shop": {"seed": shop.seed, "families": families, "goal": number}}, separators=(",", ":")),
    )
