from checks import raised
from routes import distances, has_cycle, reachable, shortest_path

MAP = {"a": {"b": 7, "c": 3}, "b": {"d": 1}, "c": {"b": 1, "d": 8}, "d": {}}


def test_distances():
    assert distances(MAP, "a") == {"a": 0, "c": 3, "b": 4, "d": 5}


def test_negative_lengths():
    assert raised(distances, {"a": {"b": -1}}, "a") == "ValueError"


def test_path():
    assert shortest_path(MAP, "a", "d") == ["a", "c", "b", "d"]


def test_no_path():
    assert shortest_path(MAP, "d", "a") == None


def test_reachable():
    assert reachable(MAP, "b") == ["b", "d"]


def test_cycles():
    assert has_cycle(MAP) == False
    assert has_cycle({"a": {"b": 1}, "b": {"a": 1}}) == True
