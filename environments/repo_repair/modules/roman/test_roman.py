from checks import raised
from roman import add, from_roman, is_roman, to_roman


def test_small_numbers():
    assert [to_roman(number) for number in (1, 2, 3, 4, 5, 6, 9, 10)] == [
        "I", "II", "III", "IV", "V", "VI", "IX", "X"
    ]


def test_a_year():
    assert to_roman(1994) == "MCMXCIV"
    assert from_roman("MCMXCIV") == 1994


def test_limits():
    assert to_roman(3999) == "MMMCMXCIX"
    assert raised(to_roman, 0) == "ValueError"
    assert raised(to_roman, 4000) == "ValueError"


def test_unusual_spellings_are_refused():
    assert is_roman("IIII") == False
    assert is_roman("IX") == True


def test_add():
    assert add("XIV", "VI") == "XX"
