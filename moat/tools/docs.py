"""The tools of every domain as a prompt carries them: names and one line each. No code of a tool is imported here.

Domains: `maths`, `qa`, `web` and `webshop` are those of the paper's tasks, with the tools of the public Lumos data (its
documentation in our words); `arithmetic` is the built-in stories', Calculator alone.
"""

from collections.abc import Mapping
from types import MappingProxyType

_CALCULATOR = "Calculator(expression) -> number: evaluates an arithmetic expression"

DOCS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "arithmetic": {"Calculator": _CALCULATOR},
        "maths": {
            "Calculator": "Calculator(expression) -> value: evaluates an expression, or simplifies one with unknowns",
            "SetEquation": "SetEquation(equation) -> equation: states an equation",
            "SolveEquation": "SolveEquation(equations) -> values: solves one equation, or several with commas between",
            "SolveInequality": "SolveInequality(inequality) -> intervals: solves an inequality for its unknown",
            "Count": "Count(list) -> number: counts the elements of a list",
            "Define": "Define(quantity) -> quantity: introduces an unknown, a number or an expression",
            "Code": "Code(statements) -> value: runs assignments, if and loops; gives the last value",
        },
        "qa": {
            "KnowledgeQuery": "KnowledgeQuery(subject) -> passages: finds what is known of a subject",
            "ParagraphRetrieve": "ParagraphRetrieve(passages, Query: text) -> paragraphs: keeps what bears on the query",
            "QA": "QA([paragraphs], Question: text) -> answer: answers the question from the paragraphs",
            "Calculator": "Calculator(expression) -> value: evaluates arithmetic, or compares two results",
            "Code": "Code(statements) -> value: runs assignments, if and loops; gives the last value",
        },
        "web": {
            "CLICK": "CLICK(page, QUERY: element) -> page: clicks on the element",
            "TYPE": "TYPE(page, QUERY: element, TEXT: text) -> page: types the text into the element",
            "SELECT": "SELECT(page, QUERY: element, TEXT: option) -> page: chooses the option of the element",
        },
        "webshop": {
            "Search": "Search(page, QUERY: words) -> page: searches the shop",
            "FeatureRetrieve": "FeatureRetrieve(page) -> features: reads the features of the products on the page",
            "Pick": "Pick(features, QUERY: wish) -> page: opens the product that fits the wish best",
            "Click": "Click(page, QUERY: button) -> page: clicks on a button or an option",
        },
    }
)
"""Tool name to documentation line, by domain."""


def documentation(domain: str) -> str:
    """The action list of a domain and its documentation, as a grounder's prompt carries them. Raises ValueError."""
    if domain not in DOCS:
        raise ValueError(f"no domain {domain!r}; there are {', '.join(DOCS)}")
    return "\n".join([f"Actions: {', '.join(DOCS[domain])}", *DOCS[domain].values()])
