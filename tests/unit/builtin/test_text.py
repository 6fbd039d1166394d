"""Text from outside, made fit for a result."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwork.builtin.text import clean, fit, has_control_characters


@given(st.text(max_size=300), st.integers(2, 200))
def test_what_fits_stays_and_what_does_not_is_cut_to_the_limit(text: str, limit: int) -> None:
    for keep in ("head", "tail"):
        kept, cut = fit(text, keep=keep, limit=limit)
        assert len(msgspec.json.encode(kept)) <= limit
        assert cut == (kept != text)
        assert text.startswith(kept) if keep == "head" else text.endswith(kept)


@given(st.text())
def test_cleaned_text_holds_no_control_characters(text: str) -> None:
    assert not has_control_characters(clean(text))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("tab\tand\r\nline", "tab\tand\r\nline"),
        ("nul\0bell\a", "nul\ufffdbell\ufffd"),
    ],
)
def test_colours_go_and_tabs_and_line_ends_stay(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
