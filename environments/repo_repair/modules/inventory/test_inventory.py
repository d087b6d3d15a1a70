from checks import raised
from inventory import Inventory, rank, reorder


def stocked():
    stock = Inventory()
    stock.receive("nut", 10, 2)
    stock.receive("nut", 5, 3)
    return stock


def test_on_hand_and_value():
    assert stocked().on_hand("nut") == 15
    assert stocked().value() == 35


def test_issue_takes_the_oldest():
    stock = stocked()
    assert stock.issue("nut", 12) == 26
    assert stock.on_hand("nut") == 3


def test_issue_of_too_much():
    assert raised(stocked().issue, "nut", 16) == "ValueError"


def test_below():
    assert stocked().below({"nut": 20, "bolt": 1, "pin": 0}) == ["bolt", "nut"]


def test_average_cost():
    stock = stocked()
    stock.issue("nut", 5)
    assert stock.average_cost("nut") == 2.5


def test_reorder():
    assert reorder(3, 5, 20, 6) == 3
    assert reorder(6, 5, 20, 6) == 0


def test_rank():
    assert rank({"a": 1, "b": 3}) == [("b", 75), ("a", 25)]
