from checks import raised
from inventory import Inventory, rank, reorder


def stocked():
    stock = Inventory()
    stock.receive("nut", 4, 5)
    stock.receive("nut", 6, 10)
    stock.receive("bolt", 1, 0)
    return stock


def test_impossible_lots():
    assert raised(stocked().receive, "nut", 0, 1) == "ValueError"
    assert raised(stocked().receive, "nut", -2, 1) == "ValueError"
    assert raised(stocked().receive, "nut", 1, -1) == "ValueError"
    assert raised(stocked().receive, "nut", 1, 0) == None


def test_nothing_there():
    assert Inventory().on_hand("nut") == 0
    assert Inventory().value() == 0
    assert Inventory().average_cost("nut") == None


def test_value_of_all():
    assert stocked().value() == 80


def test_issue_of_exactly_one_lot():
    stock = stocked()
    assert stock.issue("nut", 4) == 20
    assert stock.lots["nut"] == [[6, 10]]


def test_issue_of_everything():
    stock = stocked()
    assert stock.issue("nut", 10) == 80
    assert stock.on_hand("nut") == 0
    assert stock.lots["nut"] == []
    assert stock.average_cost("nut") == None


def test_issue_of_part_of_a_lot():
    stock = stocked()
    assert stock.issue("nut", 1) == 5
    assert stock.issue("nut", 5) == 35
    assert stock.lots["nut"] == [[4, 10]]


def test_issue_of_nothing():
    stock = stocked()
    assert stock.issue("nut", 0) == 0
    assert raised(stock.issue, "pin", 1) == "ValueError"


def test_average():
    assert stocked().average_cost("nut") == 8.0
    assert stocked().average_cost("bolt") == 0.0


def test_below_at_the_level():
    assert stocked().below({"nut": 10, "bolt": 2}) == ["bolt"]
    assert stocked().below({}) == []


def test_reorder_at_the_level():
    assert reorder(5, 5, 10, 5) == 1
    assert reorder(0, 5, 10, 3) == 4
    assert reorder(4, 5, 10, 3) == 2


def test_rank_with_equals():
    assert rank({"b": 2, "a": 2, "c": 4}) == [("c", 50), ("a", 25), ("b", 25)]


def test_rank_of_nothing():
    assert rank({}) == []
    assert rank({"a": 0}) == []
    assert rank({"a": 5}) == [("a", 100)]
