"""A page's candidate elements: moat/page.py."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.page import MAX_ELEMENTS, MAX_HTML, MAX_OPTIONS, MAX_TEXT, Element, Page, PageError, parse_html

LIGHT = settings(deadline=None, max_examples=100)

HTML = """
<html backend_node_id="1"><body backend_node_id="2">
  <div backend_node_id="10" class="x"><text backend_node_id="11">Book  a</text> <b backend_node_id="12">train</b></div>
  <input backend_node_id="13" type="text" aria_label="From" placeholder="Town" class="q" onclick="go()"></input>
  <select backend_node_id="14" name="class"><option>First</option><option value="2nd"></option></select>
  <button backend_node_id="15" title="Find"><script>evil()</script>Go</button>
</body></html>
"""


def candidate(number, **more):
    return {"tag": "x", "backend_node_id": str(number), "attributes": "{}", **more}


def test_the_candidates_of_a_mind2web_step_come_in_document_order():
    page = Page.from_mind2web(HTML, [candidate(15), candidate(14), candidate(13), candidate(10)])
    assert page.ids == ["10", "13", "14", "15"]


def test_an_element_keeps_what_says_what_it_is_for():
    page = Page.from_mind2web(HTML, [candidate(number) for number in (10, 13, 14, 15)])
    assert page.elements == (
        Element("10", "div", {}, "Book a train"),
        Element("13", "input", {"type": "text", "aria_label": "From", "placeholder": "Town"}),
        Element("14", "select", {"name": "class"}, "", ("First", "2nd")),
        Element("15", "button", {"title": "Find"}, "Go"),
    )


def test_a_candidate_may_be_the_json_text_of_one():
    page = Page.from_mind2web(HTML, [json.dumps(candidate(15)), candidate(13)])
    assert page.ids == ["13", "15"]


def test_a_candidate_that_is_not_in_the_html_is_left_out():
    assert Page.from_mind2web(HTML, [candidate(99), candidate(15)]).ids == ["15"]


def test_a_hyphenated_attribute_is_the_same():
    page = Page.from_mind2web('<a backend_node_id="1" aria-label="Help">?</a>', [candidate(1)])
    assert page.elements == (Element("1", "a", {"aria_label": "Help"}, "?"),)


@pytest.mark.parametrize("bad", [{"tag": "a"}, {"backend_node_id": None}, "not json", "[]", "7"])
def test_a_candidate_without_a_node_id_is_refused_by_its_number(bad):
    with pytest.raises(PageError, match="candidate 2"):
        Page.from_mind2web(HTML, [candidate(15), bad])


# --- HTML that is not good -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<p backend_node_id="1">open <b>bold', "open bold"),
        ('<p backend_node_id="1">a & b &amp; c &copy;</p>', "a & b & c ©"),
        ('<p backend_node_id="1">one<!-- not this -->two</p>', "onetwo"),
        ('<p backend_node_id="1">one<?php echo 1 ?>two</p>', "onetwo"),
        ('<p backend_node_id="1">nul\0 there</p>', "nul there"),
        ('<p backend_node_id="1">half \ud800 pair</p>', "half ? pair"),
        ('<?xml version="1.0" encoding="utf-16"?><p backend_node_id="1">é</p>', "é"),
        ('</div></p><p backend_node_id="1">stray</p></html></html>', "stray"),
        ('<p backend_node_id="1">x<style>p {}</style><noscript>n</noscript>y</p>after', "x y"),
    ],
)
def test_what_can_be_read_of_broken_html_is_read(html, text):
    assert Page.from_mind2web(html, [candidate(1)]).elements[0].text == text


def test_no_entity_of_a_document_is_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    html = f'<!DOCTYPE p [<!ENTITY x SYSTEM "file://{secret}">]><p backend_node_id="1">&x;</p>'
    assert "SECRET" not in Page.from_mind2web(html, [candidate(1)]).elements[0].text


def test_entities_do_not_multiply():
    lines = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(9))
    html = f'<!DOCTYPE p [<!ENTITY e0 "ha">{lines}]><p backend_node_id="1">&e9;</p>'
    assert len(Page.from_mind2web(html, [candidate(1)]).elements[0].text) <= MAX_TEXT


def test_deep_nesting_is_survived():
    html = '<p backend_node_id="1">top</p>' + "<div>" * 100_000 + "deep"
    assert Page.from_mind2web(html, [candidate(1)]).elements[0].text == "top"


def test_too_much_html_is_refused():
    with pytest.raises(PageError, match=f"more than {MAX_HTML}"):
        parse_html("x" * (MAX_HTML + 1))


def test_no_html_is_an_empty_page():
    assert Page.from_mind2web(" ", [candidate(1)]).elements == ()


def test_a_containers_text_is_cut():
    html = f'<div backend_node_id="1">{"<p>word</p>" * 1000}</div>'
    text = Page.from_mind2web(html, [candidate(1)]).elements[0].text
    assert len(text) <= MAX_TEXT
    assert set(text.split()) == {"word"}


def test_options_are_bounded():
    html = f'<select backend_node_id="1">{"<option>o</option>" * (MAX_OPTIONS + 5)}</select>'
    assert len(Page.from_mind2web(html, [candidate(1)]).elements[0].options) == MAX_OPTIONS


@given(st.text(max_size=200))
@LIGHT
def test_any_text_gives_a_page_or_a_page_error(html):
    page = Page.from_mind2web(html, [candidate(1)])
    assert page.ids in ([], ["1"])


# --- the column ----------------------------------------------------------------------------------------------------

texts = st.text(max_size=20)
elements = st.builds(
    Element,
    st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    texts,
    st.dictionaries(texts, texts, max_size=3),
    texts,
    st.lists(texts, max_size=3).map(tuple),
)


@given(st.lists(elements, max_size=4, unique_by=lambda element: element.id))
@LIGHT
def test_a_page_survives_the_column(parts):
    page = Page(tuple(parts))
    assert Page.from_json(page.to_json()) == page


def test_the_column_is_as_documented():
    page = Page((Element("12", "button", {"aria_label": "Find"}, "Search"), Element("13", "select", {}, "", ("A",))))
    assert json.loads(page.to_json()) == {
        "elements": [
            {"id": "12", "tag": "button", "attributes": {"aria_label": "Find"}, "text": "Search"},
            {"id": "13", "tag": "select", "options": ["A"]},
        ]
    }


@pytest.mark.parametrize(
    ("html", "element"),
    [
        ('<a title="Help">Where <i>am</i> I</a>', Element("1", "a", {"title": "Help"}, "Where am I")),
        ("<select name=s><option>A<option>B</select>", Element("1", "select", {"name": "s"}, "", ("A", "B"))),
        ("<option>Red</option>", Element("1", "option", {}, "Red")),
        ("only words", Element("1", "", {}, "only words")),
        ("", Element("1", "")),
    ],
)
def test_an_element_may_be_a_snippet(html, element):
    assert Page.from_json(json.dumps({"elements": [{"id": "1", "html": html}]})).elements == (element,)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "elements"),
        ('{"elements": {}}', "elements"),
        ('{"elements": [3]}', "element 1"),
        ('{"elements": [{"tag": "a"}]}', "element 1"),
        ('{"elements": [{"id": 3}]}', "element 1"),
        ('{"elements": [{"id": "1", "colour": "red"}]}', "unknown keys .*colour"),
        ('{"elements": [{"id": "1", "text": 3}]}', "are texts"),
        ('{"elements": [{"id": "1", "attributes": []}]}', "attributes"),
        ('{"elements": [{"id": "1", "options": "A"}]}', "options"),
        ('{"elements": [{"id": "1", "html": "<a>", "text": "x"}]}', "alone"),
        ('{"elements": [{"id": "1", "html": 3}]}', "alone"),
        ('{"elements": [{"id": "1"}, {"id": "1"}]}', "element 2: the id 1 is there twice"),
        ('{"elements": [{"id": ""}]}', "element 1: an id"),
        ('{"elements": [{"id": "1|2"}]}', "element 1: an id"),
        ('{"elements": [{"id": "1]"}]}', "element 1: an id"),
        ('{"elements": [{"id": "1 2"}]}', "element 1: an id"),
    ],
)
def test_a_bad_column_is_refused_with_the_place(context, message):
    with pytest.raises(PageError, match=message):
        Page.from_json(context)


def test_too_many_elements_are_refused():
    with pytest.raises(PageError, match=f"more than {MAX_ELEMENTS}"):
        Page(tuple(Element(str(number), "a") for number in range(MAX_ELEMENTS + 1)))
