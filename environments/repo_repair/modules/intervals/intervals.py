"""Sets of whole numbers as sorted lists of half-open intervals (start, end)."""


def merge(intervals):
    """The same numbers as disjoint intervals in order; those that touch become one."""
    merged = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total(intervals):
    """How many numbers are in at least one of them."""
    return sum(end - start for start, end in merge(intervals))


def intersect(left, right):
    """The numbers that are in both sets."""
    left, right = merge(left), merge(right)
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def subtract(left, right):
    """The numbers of the left set that are not in the right one."""
    found = []
    for start, end in merge(left):
        for cut_start, cut_end in merge(right):
            if cut_end <= start or cut_start >= end:
                continue
            if start < cut_start:
                found.append((start, cut_start))
            start = cut_end
        if start < end:
            found.append((start, end))
    return found


def contains(intervals, number):
    """Whether the number is in the set."""
    return any(start <= number < end for start, end in intervals)
