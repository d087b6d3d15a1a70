from checks import raised
from wrapping import center, indent, justify, shorten, wrap


def test_wrap():
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_wrap_cuts_long_words():
    assert wrap("a abcdefgh b", 3) == ["a", "abc", "def", "gh", "b"]


def test_wrap_needs_a_width():
    assert raised(wrap, "a", 0) == "ValueError"


def test_justify():
    assert justify("a b c", 8) == "a   b  c"


def test_center():
    assert center("ab", 5) == " ab  "


def test_indent():
    assert indent("a\n\nb", "> ") == "> a\n\n> b"


def test_shorten():
    assert shorten("one two three", 10) == "one two..."
