"""Whether an answer is the gold answer. Used by every metric, so it is strict and written down.

A number, for `parse_number`, is the whole text, white space at its ends aside:

- digits with optional thousands separators and decimals: `18`, `18.0`, `1,000`, `1,000.50`, `.5`, `10.`
- with one sign, before or after a currency sign ($, €, £): `-3`, `+3`, `−3` (U+2212), `-$3`, `$-3`
- or a fraction of two such numbers: `9/2`, `-9 / 2`
- or a percentage, which is a hundredth: `50%`, `50 percent`
- then, optionally, one or two words, taken for a unit and ignored: `18 dollars`, `3 square feet`, `50% discount`;
  and a full stop.

Refused, because their value is not certain: more numbers than one (`18 or 19`, `9/2/3`, `1 1/2`, `3-4`), words that
change a value (`5 million`, `3 dozen`, `2 thirds`), words before the number (`about 18`), separators out of place
(`1,00`), scientific notation, `(3)`, `- 3`, `9/0`, digits that are not ASCII, more than 500 characters.

Numbers are compared exactly. There is no tolerance: `0.33` is not `1/3`. Units are not compared.
"""

import re
import unicodedata
from fractions import Fraction

from moat.calculator import NUMBER

MAX_LENGTH = 500  # characters of a number with its unit

_SIGN = "[-+−]?"
_QUANTITY = re.compile(
    rf"(?P<outer>{_SIGN})(?:[$€£]\s*)?(?P<inner>{_SIGN})(?P<top>{NUMBER})"
    rf"(?:\s*/\s*(?P<bottom>{NUMBER})|(?P<percent>\s*(?:%|percent\b)))?(?P<words>(?:\s+[^\W\d_]+){{0,2}})\s*\.?",
    re.IGNORECASE,
)
# Words after a number that make it another number, or one of several.
_NOT_A_UNIT = re.compile(
    r"and|or|to|plus|minus|times|over|point|squared|cubed|percent|k|half|halves|below|negative"
    r"|(?:dozen|hundred|thousand|million|billion|trillion|third|quarter)s?",
    re.IGNORECASE,
)
_TRUTH = {"true": "yes", "false": "no"}


def parse_number(text: str) -> Fraction | None:
    """The value of a text that is one number, in the forms of this module's docstring; None for any other text."""
    if len(text) > MAX_LENGTH:
        return None
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or (match["outer"] and match["inner"]):
        return None
    if any(_NOT_A_UNIT.fullmatch(word) for word in match["words"].split()):
        return None
    value = _unsigned(match["top"])
    if match["bottom"] is not None:
        bottom = _unsigned(match["bottom"])
        if bottom == 0:
            return None
        value /= bottom
    if match["percent"] is not None:
        value /= 100
    return -value if (match["outer"] or match["inner"]) in ("-", "−") else value


def same_answer(predicted: str | None, gold: str) -> bool:
    """Whether `predicted` is the answer `gold`.

    A gold that is a number is matched by numbers of equal value alone; any other gold by the same text, after
    normalising case, white space, surrounding quotes and a final full stop, with `True` read as `yes` and `False` as
    `no`. No answer (None or blank) is never right, and nothing is right where the gold is blank (trap 33).
    """
    if predicted is None:
        return False
    value = parse_number(gold)
    if value is not None:
        return parse_number(predicted) == value
    text = _normal(predicted)
    return text != "" and text == _normal(gold)


def _unsigned(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


def _normal(text: str) -> str:
    """Composed (not compatibility: `5²` stays apart from `52`) and casefolded text with single spaces."""
    text = " ".join(unicodedata.normalize("NFC", text).casefold().split())
    text = text.strip("\"'“”‘’").removesuffix(".").strip("\"'“”‘’ ")
    return _TRUTH.get(text, text)
