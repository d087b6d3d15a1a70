"""Arithmetic in text: tokens, then a value by recursive descent."""

OPERATORS = "+-*/()"


def tokenize(text):
    """Numbers as int or float, operators as text."""
    tokens = []
    position = 0
    while position < len(text):
        character = text[position]
        if character.isspace():
            position += 1
        elif character in OPERATORS:
            tokens.append(character)
            position += 1
        elif character.isdigit() or character == ".":
            start = position
            while position < len(text) and (text[position].isdigit() or text[position] == "."):
                position += 1
            tokens.append(_number(text[start:position]))
        else:
            raise SyntaxError(f"unexpected {character!r} at {position}")
    return tokens


def _number(text):
    if text.count(".") > 1 or text == ".":
        raise SyntaxError(f"{text!r} is no number")
    return float(text) if "." in text else int(text)


def evaluate(text):
    """The value of an expression."""
    tokens = tokenize(text)
    value, rest = _sum(tokens)
    if rest:
        raise SyntaxError(f"unexpected {rest[0]!r}")
    return value


def _sum(tokens):
    value, tokens = _product(tokens)
    while tokens and tokens[0] in ("+", "-"):
        operator = tokens[0]
        right, tokens = _product(tokens[1:])
        value = value + right if operator == "+" else value - right
    return value, tokens


def _product(tokens):
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in ("*", "/"):
        operator = tokens[0]
        right, tokens = _factor(tokens[1:])
        value = value * right if operator == "*" else value / right
    return value, tokens


def _factor(tokens):
    if not tokens:
        raise SyntaxError("unexpected end")
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        value, rest = _factor(rest)
        return -value, rest
    if first == "(":
        value, rest = _sum(rest)
        if not rest or rest[0] != ")":
            raise SyntaxError("missing )")
        return value, rest[1:]
    if isinstance(first, str):
        raise SyntaxError(f"unexpected {first!r}")
    return first, rest
