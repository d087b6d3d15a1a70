from checks import raised
from wrapping import center, indent, justify, shorten, wrap


def test_wrap_exactly():
    assert wrap("ab cd", 5) == ["ab cd"]
    assert wrap("ab cde", 5) == ["ab", "cde"]


def test_wrap_nothing():
    assert wrap("", 5) == []
    assert wrap("   ", 5) == []


def test_wrap_a_word_of_the_width():
    assert wrap("abc def", 3) == ["abc", "def"]
    assert wrap("abcdef", 3) == ["abc", "def"]


def test_wrap_narrow():
    assert wrap("ab c", 1) == ["a", "b", "c"]
    assert raised(wrap, "a", -3) == "ValueError"


def test_wrap_after_a_cut():
    assert wrap("x abcdefg hi j", 4) == ["x", "abcd", "efg", "hi j"]
    assert wrap("abcdefgh i", 4) == ["abcd", "efgh", "i"]


def test_justify_evenly():
    assert justify("a b c", 7) == "a  b  c"
    assert justify("ab cd", 5) == "ab cd"


def test_justify_one_word():
    assert justify("word", 10) == "word"


def test_justify_unevenly():
    assert justify("aa b c d", 12) == "aa   b  c  d"


def test_justify_too_long():
    assert raised(justify, "abc def", 6) == "ValueError"


def test_center_evenly():
    assert center("ab", 6, "*") == "**ab**"
    assert center("abc", 3) == "abc"
    assert center("abc", 2) == "abc"
    assert center("", 3, "-") == "---"


def test_indent_blank_lines():
    assert indent("a\n  \n b\n", "..") == "..a\n  \n.. b\n"


def test_shorten_fits():
    assert shorten("one  two", 7) == "one two"
    assert shorten("", 3) == ""


def test_shorten_to_little():
    assert shorten("one two three", 9) == "one..."
    assert shorten("abcdefgh", 5) == "..."
    assert shorten("one two three", 12, "+") == "one two+"
