"""Semantic versions: major.minor.patch with an optional pre-release."""


def parse(text):
    """(major, minor, patch, pre-release), the last a tuple of its parts."""
    core, dash, pre = text.partition("-")
    parts = core.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise ValueError(f"{text!r} is no version")
    if any(len(part) > 1 and part.startswith("0") for part in parts):
        raise ValueError("a number begins with 0")
    labels = tuple(pre.split(".")) if dash else ()
    if dash and not all(labels):
        raise ValueError("a part of the pre-release is empty")
    return int(parts[0]), int(parts[1]), int(parts[2]), labels


def compare(left, right):
    """-1, 0 or 1; a pre-release comes before its release."""
    first, second = parse(left), parse(right)
    if first[:3] != second[:3]:
        return -1 if first[:3] < second[:3] else 1
    if first[3] == second[3]:
        return 0
    if not first[3] or not second[3]:
        return 1 if not first[3] else -1
    return _compare_labels(first[3], second[3])


def _compare_labels(left, right):
    for one, other in zip(left, right):
        if one == other:
            continue
        if one.isdigit() and other.isdigit():
            return -1 if int(one) < int(other) else 1
        if one.isdigit() != other.isdigit():
            return -1 if one.isdigit() else 1
        return -1 if one < other else 1
    return -1 if len(left) < len(right) else 1


def bump(text, part):
    """The next version of a part: major, minor or patch."""
    major, minor, patch, pre = parse(text)
    if part == "major":
        return f"{major + 1}.0.0"
    if part == "minor":
        return f"{major}.{minor + 1}.0"
    if part == "patch":
        return f"{major}.{minor}.{patch}" if pre else f"{major}.{minor}.{patch + 1}"
    raise ValueError(f"no part {part!r}")


def compatible(wanted, found):
    """Whether a version may stand in for the wanted one (the caret's rule)."""
    if compare(found, wanted) < 0:
        return False
    wanted_parts, found_parts = parse(wanted), parse(found)
    if wanted_parts[0] > 0:
        return found_parts[0] == wanted_parts[0]
    return found_parts[:2] == wanted_parts[:2]


def newest(versions):
    """The highest of them."""
    best = versions[0]
    for version in versions[1:]:
        if compare(version, best) > 0:
            best = version
    return best
