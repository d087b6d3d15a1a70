from checks import raised
from matrix import determinant, identity, minor, multiply, power, rotate, shape, transpose


def test_empty():
    assert shape([]) == (0, 0)
    assert determinant([]) == 1
    assert identity(0) == []


def test_identity_of_three():
    assert identity(3) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_product_of_a_row_and_a_column():
    assert multiply([[1, 2, 3]], [[4], [5], [6]]) == [[32]]
    assert multiply([[4], [5]], [[1, 2]]) == [[4, 8], [5, 10]]


def test_shapes_that_do_not_fit():
    assert raised(multiply, [[1, 2]], [[1, 2]]) == "ValueError"
    assert raised(multiply, [[1, 2]], [[1], [2]]) == None


def test_powers():
    assert power([[1, 1], [1, 0]], 10) == [[89, 55], [55, 34]]
    assert power([[2, 0], [0, 3]], 3) == [[8, 0], [0, 27]]
    assert power([[5]], 1) == [[5]]
    assert power([[1, 2], [3, 4]], 0) == [[1, 0], [0, 1]]


def test_no_such_power():
    assert raised(power, [[1, 2]], 2) == "ValueError"
    assert raised(power, [[1]], -1) == "ValueError"


def test_minor():
    assert minor([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 1, 0) == [[2, 3], [8, 9]]
    assert minor([[1, 2], [3, 4]], 0, 1) == [[3]]


def test_determinant_of_three():
    assert determinant([[2, 0, 1], [1, 3, 2], [1, 1, 4]]) == 18
    assert determinant([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == 0
    assert determinant([[7]]) == 7


def test_not_square():
    assert raised(determinant, [[1, 2, 3], [4, 5, 6]]) == "ValueError"


def test_transpose_of_a_row():
    assert transpose([[1, 2]]) == [[1], [2]]


def test_rotate_a_rectangle():
    assert rotate([[1, 2, 3], [4, 5, 6]]) == [[4, 1], [5, 2], [6, 3]]
