"""The paper's main results: moat/paper.py."""

import pytest

from moat.paper import RESULTS, TASKS, own_row, rows_for

# The averages as the paper prints them (arXiv 2509.09629), held-in and held-out, in its order.
PRINTED = [(60.2, 67.1), (48.2, 55.8), (10.6, 13.2), (24.5, 35.0), (28.5, 48.6), (31.1, 35.7), (41.1, 49.6), (44.1, 52.3)]
PRINTED += [(43.2, 49.2), (46.3, 53.6), (54.3, 59.1), (56.8, 60.4)]


def test_averages_are_the_printed_ones():
    """Plain means of three tasks, to a tenth of a point: so no figure of a row is off."""
    assert len(RESULTS) == len(PRINTED)
    for row, (held_in, held_out) in zip(RESULTS, PRINTED, strict=True):
        assert (row.held_in, row.held_out) == (pytest.approx(held_in, abs=0.051), pytest.approx(held_out, abs=0.051)), row


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("meta-llama/Llama-2-7b-hf", ["Llama-2-7B-Chat", "Agent Tuning", "Agent-FLAN", "Agent Lumos", "MOAT"]),
        ("/models/Llama-2-7b-chat-hf/", ["Llama-2-7B-Chat", "Agent Tuning", "Agent-FLAN", "Agent Lumos", "MOAT"]),
        ("meta-llama/Llama-2-13b-hf", ["Agent Tuning"]),
        ("mistralai/Mistral-7B-Instruct-v0.2", ["Agent Lumos", "MOAT"]),
        ("Qwen/Qwen2.5-14B", ["Agent Lumos", "MOAT"]),
        ("mistralai/Mistral-7B-v0.3", []),
        ("Qwen/Qwen2.5-Coder-14B", []),
        ("Qwen/Qwen2.5-7B", []),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", []),
        ("hf", []),
        ("", []),
    ],
)
def test_rows_are_of_the_same_base_model(name, methods):
    """Another size, version or kind of model is another model; one that is made here is none of the paper's."""
    assert [row.method for row in rows_for(name)] == methods


def test_a_runs_own_row_has_what_was_evaluated():
    """In percent; a source of another name is no task of the paper's, and an average needs all three."""
    row = own_row("round 1", "x", {"gsm8k": 0.5, "mind2web": 0.25, "Strategy_QA": 0.75, "svamp": 0.5, "webshop_like": 1.0})
    assert [row.values[task] for task in TASKS] == [50, 25, 75, 50, None, None]
    assert (row.held_in, row.held_out) == (50, None)
