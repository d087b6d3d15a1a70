from checks import raised
from daterange import (
    add_months,
    day_of_year,
    days_between,
    days_in_month,
    is_leap,
    next_day,
    ordinal,
    overlap_days,
    weekday,
    workdays,
)


def test_centuries():
    assert [is_leap(year) for year in (1600, 1700, 2100, 2400, 2028, 2026)] == [True, False, False, True, True, False]


def test_months():
    assert [days_in_month(2023, month) for month in (1, 2, 4, 12)] == [31, 28, 30, 31]
    assert days_in_month(2024, 2) == 29
    assert days_in_month(2024, 3) == 31
    assert raised(days_in_month, 2023, 0) == "ValueError"
    assert raised(days_in_month, 2023, 13) == "ValueError"


def test_last_days():
    assert day_of_year(2023, 12, 31) == 365
    assert day_of_year(2024, 12, 31) == 366
    assert day_of_year(2024, 1, 1) == 1
    assert raised(day_of_year, 2024, 4, 31) == "ValueError"
    assert raised(day_of_year, 2024, 4, 0) == "ValueError"


def test_ordinals():
    assert ordinal((1, 1, 1)) == 1
    assert ordinal((2000, 1, 1)) == 730120
    assert ordinal((2024, 2, 29)) == 738945


def test_spans():
    assert days_between((2000, 1, 1), (2024, 1, 1)) == 8766
    assert days_between((2024, 3, 1), (2024, 2, 1)) == -29
    assert days_between((1900, 1, 1), (1901, 1, 1)) == 365
    assert days_between((2024, 5, 5), (2024, 5, 5)) == 0


def test_weekdays():
    assert [weekday((2026, 11, day)) for day in range(1, 8)] == [6, 0, 1, 2, 3, 4, 5]
    assert weekday((1970, 1, 1)) == 3


def test_days_after():
    assert next_day((2024, 2, 28)) == (2024, 2, 29)
    assert next_day((2024, 4, 30)) == (2024, 5, 1)
    assert next_day((2024, 4, 29)) == (2024, 4, 30)
    assert next_day((2024, 11, 30)) == (2024, 12, 1)


def test_months_later():
    assert add_months((2023, 11, 15), 3) == (2024, 2, 15)
    assert add_months((2024, 3, 31), -1) == (2024, 2, 29)
    assert add_months((2024, 12, 5), 0) == (2024, 12, 5)
    assert add_months((2024, 1, 5), 12) == (2025, 1, 5)
    assert add_months((2024, 1, 5), -1) == (2023, 12, 5)


def test_ranges_that_touch_or_not():
    assert overlap_days(((2024, 1, 1), (2024, 1, 5)), ((2024, 1, 5), (2024, 1, 9))) == 1
    assert overlap_days(((2024, 1, 1), (2024, 1, 5)), ((2024, 1, 6), (2024, 1, 9))) == 0
    assert overlap_days(((2024, 1, 1), (2024, 1, 5)), ((2024, 3, 6), (2024, 3, 9))) == 0
    assert overlap_days(((2024, 1, 1), (2024, 12, 31)), ((2024, 2, 1), (2024, 2, 29))) == 29


def test_workdays_of_a_month():
    assert workdays((2024, 2, 1), (2024, 2, 29)) == 21
    assert workdays((2024, 3, 2), (2024, 3, 3)) == 0
    assert workdays((2024, 3, 4), (2024, 3, 4)) == 1
    assert workdays((2024, 3, 5), (2024, 3, 4)) == 0
