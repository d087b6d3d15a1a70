from checks import raised
from roman import add, from_roman, is_roman, to_roman


def test_every_symbol():
    assert [to_roman(number) for number in (1000, 900, 500, 400, 100, 90, 50, 40)] == [
        "M", "CM", "D", "CD", "C", "XC", "L", "XL"
    ]


def test_repeated():
    assert to_roman(3888) == "MMMDCCCLXXXVIII"
    assert to_roman(444) == "CDXLIV"


def test_round_trip():
    assert [from_roman(to_roman(number)) for number in (1, 3, 8, 14, 39, 44, 99, 246, 399, 789)] == [
        1, 3, 8, 14, 39, 44, 99, 246, 399, 789
    ]


def test_read_large():
    assert from_roman("MMXXVI") == 2026
    assert from_roman("CDXLIV") == 444
    assert from_roman("DCXLVIII") == 648


def test_read_small_letters():
    assert from_roman("xiv") == 14


def test_refused():
    assert raised(from_roman, "IC") == "ValueError"
    assert raised(from_roman, "VX") == "ValueError"
    assert raised(from_roman, "ABC") == "ValueError"
    assert raised(from_roman, "") == "ValueError"


def test_out_of_range():
    assert raised(to_roman, -5) == "ValueError"
    assert raised(to_roman, 4001) == "ValueError"
    assert raised(to_roman, 1) == None


def test_is_roman():
    assert [is_roman(text) for text in ("MM", "MMMM", "XC", "VV", "Q")] == [True, False, True, False, False]


def test_sums():
    assert add("I", "I") == "II"
    assert add("CM", "C") == "M"
    assert raised(add, "MMM", "M") == "ValueError"
