from checks import raised
from matrix import determinant, identity, multiply, power, rotate, shape, transpose


def test_shape():
    assert shape([[1, 2, 3], [4, 5, 6]]) == (2, 3)
    assert raised(shape, [[1], [2, 3]]) == "ValueError"


def test_transpose():
    assert transpose([[1, 2, 3], [4, 5, 6]]) == [[1, 4], [2, 5], [3, 6]]


def test_multiply():
    assert multiply([[1, 2], [3, 4]], [[5, 6], [7, 8]]) == [[19, 22], [43, 50]]


def test_power():
    assert power([[1, 1], [1, 0]], 5) == [[8, 5], [5, 3]]
    assert power([[2]], 0) == [[1]]


def test_determinant():
    assert determinant([[1, 2], [3, 4]]) == -2


def test_rotate():
    assert rotate([[1, 2], [3, 4]]) == [[3, 1], [4, 2]]


def test_identity():
    assert identity(2) == [[1, 0], [0, 1]]
