from checks import raised
from expression import evaluate, tokenize


def test_tokens():
    assert tokenize("12+(3 * 4.5)") == [12, "+", "(", 3, "*", 4.5, ")"]


def test_precedence():
    assert evaluate("2 + 3 * 4") == 14
    assert evaluate("(2 + 3) * 4") == 20


def test_left_to_right():
    assert evaluate("10 - 3 - 2") == 5
    assert evaluate("16 / 4 / 2") == 2.0


def test_signs():
    assert evaluate("-3 + 5") == 2


def test_errors():
    assert raised(evaluate, "2 +") == "SyntaxError"
    assert raised(evaluate, "(2") == "SyntaxError"
    assert raised(tokenize, "2 $ 3") == "SyntaxError"
