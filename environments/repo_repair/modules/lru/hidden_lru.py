from checks import raised
from lru import LRUCache


def test_capacity_of_one():
    cache = LRUCache(1)
    assert cache.put("a", 1) == None
    assert cache.put("b", 2) == "a"
    assert cache.get("a") == None
    assert cache.get("b") == 2


def test_writing_again_makes_newer_and_forgets_nothing():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.put("a", 3) == None
    assert cache.keys() == ["b", "a"]
    assert cache.get("a") == 3


def test_order_after_reads():
    cache = LRUCache(3)
    for key in "abc":
        cache.put(key, key * 2)
    cache.get("b")
    cache.get("a")
    assert cache.keys() == ["c", "b", "a"]
    assert cache.put("d", 0) == "c"


def test_hits_and_misses():
    cache = LRUCache(2)
    assert cache.hit_rate() == 0.0
    cache.put("a", 1)
    cache.get("a")
    cache.get("a")
    cache.get("a")
    cache.get("b")
    assert [cache.hits, cache.misses] == [3, 1]
    assert cache.hit_rate() == 0.75


def test_peek_counts_nothing():
    cache = LRUCache(2)
    cache.put("a", 1)
    assert cache.peek("a") == 1
    assert cache.peek("b") == None
    assert [cache.hits, cache.misses] == [0, 0]


def test_resize_down_and_up():
    cache = LRUCache(4)
    for number in range(4):
        cache.put(number, number)
    assert cache.resize(2) == [0, 1]
    assert cache.keys() == [2, 3]
    assert cache.resize(3) == []
    assert cache.put(9, 9) == None
    assert cache.put(10, 10) == 2


def test_impossible_sizes():
    assert raised(LRUCache, -1) == "ValueError"
    assert raised(LRUCache(2).resize, 0) == "ValueError"
    assert raised(LRUCache, 1) == None
    assert raised(LRUCache(2).resize, 1) == None


def test_default_of_a_key_that_is_there():
    cache = LRUCache(2)
    cache.put("a", None)
    assert cache.get("a", 5) == None
