from checks import raised
from expression import evaluate, tokenize


def test_one_number():
    assert evaluate("7") == 7
    assert evaluate(" 2.50 ") == 2.5


def test_tokens_at_the_end():
    assert tokenize("1-23") == [1, "-", 23]
    assert tokenize("") == []
    assert tokenize(".5") == [0.5]


def test_numbers_that_are_none():
    assert raised(tokenize, "1.2.3") == "SyntaxError"
    assert raised(tokenize, ".") == "SyntaxError"


def test_long_sum():
    assert evaluate("1 + 2 - 3 + 4 - 5") == -1


def test_long_product():
    assert evaluate("2 * 3 / 4 * 10") == 15.0


def test_mixed():
    assert evaluate("1 + 2 * 3 - 8 / 4") == 5.0


def test_nested():
    assert evaluate("((1 + 2) * (3 + 4)) - (5)") == 16


def test_signs_within():
    assert evaluate("3 - -2") == 5
    assert evaluate("2 * -3") == -6
    assert evaluate("--4") == 4
    assert evaluate("-(2 + 3)") == -5


def test_empty_and_trailing():
    assert raised(evaluate, "") == "SyntaxError"
    assert raised(evaluate, "1 2") == "SyntaxError"
    assert raised(evaluate, "1)") == "SyntaxError"
    assert raised(evaluate, "* 2") == "SyntaxError"
    assert raised(evaluate, "(1 + 2") == "SyntaxError"


def test_division_by_zero():
    assert raised(evaluate, "1 / 0") == "ZeroDivisionError"
