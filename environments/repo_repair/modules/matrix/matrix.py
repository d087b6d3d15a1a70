"""Matrices as lists of rows."""


def shape(rows):
    """Rows and columns."""
    width = len(rows[0]) if rows else 0
    if any(len(row) != width for row in rows):
        raise ValueError("rows differ in length")
    return len(rows), width


def identity(size):
    """Ones on the diagonal."""
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]


def transpose(rows):
    """Columns as rows."""
    return [list(column) for column in zip(*rows)]


def multiply(left, right):
    """The product of two matrices."""
    if shape(left)[1] != shape(right)[0]:
        raise ValueError("shapes do not fit")
    columns = transpose(right)
    return [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in left]


def power(rows, exponent):
    """A square matrix to a power of 0 or more."""
    height, width = shape(rows)
    if height != width or exponent < 0:
        raise ValueError("no such power")
    result = identity(height)
    while exponent:
        if exponent % 2 == 1:
            result = multiply(result, rows)
        rows = multiply(rows, rows)
        exponent //= 2
    return result


def minor(rows, row, column):
    """Without one row and one column."""
    return [line[:column] + line[column + 1 :] for number, line in enumerate(rows) if number != row]


def determinant(rows):
    """By the first row."""
    height, width = shape(rows)
    if height != width:
        raise ValueError("not square")
    if height == 0:
        return 1
    total = 0
    for column in range(width):
        sign = -1 if column % 2 else 1
        total += sign * rows[0][column] * determinant(minor(rows, 0, column))
    return total


def rotate(rows):
    """A quarter turn, clockwise."""
    return [list(column) for column in zip(*reversed(rows))]
