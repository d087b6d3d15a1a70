from checks import raised
from daterange import add_months, day_of_year, days_between, is_leap, next_day, overlap_days, weekday, workdays


def test_leap_years():
    assert [is_leap(year) for year in (2023, 2024, 1900, 2000)] == [False, True, False, True]


def test_day_of_year():
    assert day_of_year(2023, 3, 1) == 60
    assert day_of_year(2024, 3, 1) == 61
    assert raised(day_of_year, 2023, 2, 29) == "ValueError"


def test_days_between():
    assert days_between((2023, 12, 31), (2024, 1, 1)) == 1


def test_weekday():
    assert weekday((2024, 2, 29)) == 3


def test_next_day():
    assert next_day((2023, 12, 31)) == (2024, 1, 1)
    assert next_day((2023, 2, 28)) == (2023, 3, 1)


def test_add_months():
    assert add_months((2024, 1, 31), 1) == (2024, 2, 29)


def test_overlap():
    assert overlap_days(((2024, 1, 1), (2024, 1, 10)), ((2024, 1, 8), (2024, 2, 1))) == 3


def test_workdays():
    assert workdays((2024, 2, 26), (2024, 3, 3)) == 5
