from intervals import contains, intersect, merge, subtract, total


def test_merge_nothing():
    assert merge([]) == []


def test_merge_drops_empty_and_reversed():
    assert merge([(3, 3), (5, 4), (1, 2)]) == [(1, 2)]


def test_merge_keeps_the_longer_end():
    assert merge([(0, 100), (10, 20), (30, 40)]) == [(0, 100)]


def test_merge_touching():
    assert merge([(0, 1), (1, 2), (3, 4)]) == [(0, 2), (3, 4)]


def test_total_of_several():
    assert total([(0, 3), (2, 4), (10, 11)]) == 5
    assert total([(5, 5)]) == 0


def test_intersect_that_only_touches():
    assert intersect([(0, 5)], [(5, 9)]) == []


def test_intersect_in_several_places():
    assert intersect([(0, 4), (6, 9), (12, 20)], [(2, 7), (8, 13), (14, 15)]) == [
        (2, 4), (6, 7), (8, 9), (12, 13), (14, 15)
    ]


def test_intersect_with_equal_ends():
    assert intersect([(0, 5), (7, 9)], [(1, 5), (8, 9)]) == [(1, 5), (8, 9)]


def test_subtract_all():
    assert subtract([(2, 5)], [(0, 9)]) == []


def test_subtract_at_the_edges():
    assert subtract([(0, 10)], [(0, 2), (8, 12)]) == [(2, 8)]


def test_subtract_what_only_touches():
    assert subtract([(5, 7)], [(0, 5), (7, 9)]) == [(5, 7)]


def test_subtract_twice():
    assert subtract([(0, 20)], [(3, 4), (10, 12)]) == [(0, 3), (4, 10), (12, 20)]


def test_contains_in_the_second():
    assert contains([(0, 1), (5, 7)], 6) == True
    assert contains([(0, 1), (5, 7)], 3) == False
    assert contains([(0, 1), (5, 7)], 7) == False
