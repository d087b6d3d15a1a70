from checks import raised
from routes import distances, has_cycle, reachable, shortest_path

CITY = {
    "s": {"u": 10, "x": 5},
    "u": {"v": 1, "x": 2},
    "v": {"y": 4},
    "x": {"u": 3, "v": 9, "y": 2},
    "y": {"v": 6, "s": 7},
}


def test_distances_in_the_city():
    assert distances(CITY, "s") == {"s": 0, "x": 5, "y": 7, "u": 8, "v": 9}
    assert distances(CITY, "y") == {"y": 0, "v": 6, "s": 7, "x": 12, "u": 15}


def test_path_in_the_city():
    assert shortest_path(CITY, "s", "v") == ["s", "x", "u", "v"]
    assert shortest_path(CITY, "v", "x") == ["v", "y", "s", "x"]


def test_path_to_itself():
    assert shortest_path(CITY, "s", "s") == ["s"]


def test_unknown_nodes():
    assert shortest_path(CITY, "s", "nowhere") == None
    assert distances({}, "a") == {"a": 0}
    assert reachable({}, "a") == ["a"]


def test_length_of_zero():
    assert distances({"a": {"b": 0}, "b": {"c": 0}}, "a") == {"a": 0, "b": 0, "c": 0}
    assert raised(distances, {"a": {"b": 0}}, "a") == None


def test_negative_further_on():
    assert raised(distances, {"a": {"b": 1}, "b": {"c": -2}}, "a") == "ValueError"


def test_ties_are_broken_by_name():
    assert shortest_path({"a": {"c": 1, "b": 1}, "b": {"d": 1}, "c": {"d": 1}}, "a", "d") == ["a", "b", "d"]


def test_the_longer_first_step():
    assert shortest_path({"a": {"b": 1, "c": 2}, "b": {"d": 9}, "c": {"d": 1}}, "a", "d") == ["a", "c", "d"]


def test_reachable_through_several():
    assert reachable({"a": {"b": 1}, "b": {"c": 1}, "c": {"a": 1}, "z": {"a": 1}}, "a") == ["a", "b", "c"]


def test_cycle_further_on():
    assert has_cycle({"a": {"b": 1}, "b": {"c": 1}, "c": {"b": 1}}) == True
    assert has_cycle({"a": {"a": 1}}) == True
    assert has_cycle({}) == False


def test_two_ways_are_no_cycle():
    assert has_cycle({"a": {"b": 1, "c": 1}, "b": {"d": 1}, "c": {"d": 1}}) == False
