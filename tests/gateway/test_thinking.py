"""Reasoning and answer are told apart however the text is cut."""

from __future__ import annotations

import pytest

from inferd_gateway.thinking import ThinkSplitter

CASES = [
    ("plain <think> text", False, "", "plain <think> text"),
    ("<think>\nso\n\n</think>\n\nYes.", False, "so", "Yes."),
    (" \n<think></think>Yes", False, "", "Yes"),
    ("deep\n</think>\nYes </think>", True, "deep", "Yes </think>"),
    ("<think>cut off </thi", False, "cut off </thi", ""),
    ("<thin", False, "", "<thin"),
    ("\n  ", False, "", "\n  "),
    ("", True, "", ""),
    ("a  b </ c</think>d", True, "a  b </ c", "d"),
]


@pytest.mark.parametrize(("said", "inside", "reasoning", "text"), CASES)
def test_splitting(said, inside, reasoning, text):
    for pieces in ([said], list(said), *([said[:i], said[i:]] for i in range(len(said)))):
        splitter = ThinkSplitter(inside=inside)
        thoughts = [*map(splitter.push, pieces), splitter.finish()]
        assert "".join(thought.reasoning for thought in thoughts) == reasoning
        assert "".join(thought.text for thought in thoughts) == text
