"""Days of the Gregorian calendar, without a library."""

MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Whether the year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """How many days the month has."""
    if not 1 <= month <= 12:
        raise ValueError(f"no month {month}")
    if month == 2 and is_leap(year):
        return 29
    return MONTH_DAYS[month - 1]


def day_of_year(year, month, day):
    """1 for the first of January."""
    if not 1 <= day <= days_in_month(year, month):
        raise ValueError(f"no day {day}")
    return sum(days_in_month(year, before) for before in range(1, month)) + day


def ordinal(date):
    """Days since the first of January of the year 1, which is day 1."""
    year, month, day = date
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 + day_of_year(year, month, day)


def days_between(first, second):
    """Days from the first date to the second; negative if that is earlier."""
    return ordinal(second) - ordinal(first)


def weekday(date):
    """0 for Monday to 6 for Sunday."""
    return (ordinal(date) + 6) % 7


def next_day(date):
    """The day after."""
    year, month, day = date
    if day < days_in_month(year, month):
        return (year, month, day + 1)
    if month < 12:
        return (year, month + 1, 1)
    return (year + 1, 1, 1)


def add_months(date, months):
    """The same day so many months later, or the last day of that month."""
    year, month, day = date
    index = year * 12 + month - 1 + months
    year, month = index // 12, index % 12 + 1
    return (year, month, min(day, days_in_month(year, month)))


def overlap_days(left, right):
    """Days that two ranges share; both ends belong to a range."""
    start = max(left[0], right[0])
    end = min(left[1], right[1])
    return max(0, days_between(start, end) + 1)


def workdays(start, end):
    """Days from Monday to Friday in the range, both ends included."""
    count = 0
    date = start
    while date <= end:
        if weekday(date) < 5:
            count += 1
        date = next_day(date)
    return count
