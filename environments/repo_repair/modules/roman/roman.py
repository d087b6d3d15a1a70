"""Roman numerals from 1 to 3999."""

SYMBOLS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]
VALUES = {symbol: value for value, symbol in SYMBOLS if len(symbol) == 1}


def to_roman(number):
    """Write a number."""
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} cannot be written")
    written = ""
    for value, symbol in SYMBOLS:
        while number >= value:
            written += symbol
            number -= value
    return written


def from_roman(text):
    """Read a number; only the usual spelling is accepted."""
    total = 0
    previous = 0
    for letter in reversed(text.upper()):
        if letter not in VALUES:
            raise ValueError(f"{letter!r} is no numeral")
        value = VALUES[letter]
        if value < previous:
            total -= value
        else:
            total += value
            previous = value
    if total == 0 or to_roman(total) != text.upper():
        raise ValueError(f"{text!r} is not the usual spelling")
    return total


def is_roman(text):
    """Whether a text is a numeral in its usual spelling."""
    try:
        from_roman(text)
    except ValueError:
        return False
    return True


def add(left, right):
    """The sum of two numerals, as a numeral."""
    return to_roman(from_roman(left) + from_roman(right))
