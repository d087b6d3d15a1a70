from checks import raised
from lru import LRUCache


def filled():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    return cache


def test_get_and_default():
    cache = filled()
    assert cache.get("a") == 1
    assert cache.get("x", "none") == "none"


def test_the_oldest_is_forgotten():
    cache = filled()
    assert cache.put("c", 3) == "a"
    assert cache.keys() == ["b", "c"]


def test_reading_makes_newer():
    cache = filled()
    cache.get("a")
    assert cache.put("c", 3) == "b"


def test_peek_does_not():
    cache = filled()
    assert cache.peek("a") == 1
    assert cache.put("c", 3) == "a"


def test_capacity_is_checked():
    assert raised(LRUCache, 0) == "ValueError"


def test_resize():
    cache = filled()
    assert cache.resize(1) == ["a"]


def test_hit_rate():
    cache = filled()
    cache.get("a")
    cache.get("x")
    assert cache.hit_rate() == 0.5
