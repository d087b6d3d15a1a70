from intervals import contains, intersect, merge, subtract, total


def test_merge_joins_what_overlaps():
    assert merge([(1, 5), (3, 8), (10, 12)]) == [(1, 8), (10, 12)]


def test_merge_joins_what_touches():
    assert merge([(4, 6), (1, 4)]) == [(1, 6)]


def test_total_counts_once():
    assert total([(0, 10), (5, 15)]) == 15


def test_intersect():
    assert intersect([(0, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]


def test_subtract_from_the_middle():
    assert subtract([(0, 10)], [(3, 5)]) == [(0, 3), (5, 10)]


def test_contains_the_start_and_not_the_end():
    assert contains([(2, 4)], 2) == True
    assert contains([(2, 4)], 4) == False
