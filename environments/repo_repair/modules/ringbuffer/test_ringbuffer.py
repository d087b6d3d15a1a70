from checks import raised
from ringbuffer import RingBuffer


def filled(size, *items):
    buffer = RingBuffer(size)
    for item in items:
        buffer.push(item)
    return buffer


def test_first_in_first_out():
    buffer = filled(3, 1, 2)
    assert buffer.pop() == 1
    assert buffer.pop() == 2
    assert raised(buffer.pop) == "IndexError"


def test_the_oldest_is_pushed_out():
    buffer = filled(3, 1, 2, 3, 4)
    assert buffer.items() == [2, 3, 4]
    assert buffer.dropped == 1


def test_index():
    buffer = filled(3, 1, 2, 3, 4)
    assert buffer[0] == 2
    assert buffer[-1] == 4


def test_newest():
    buffer = filled(3, 1, 2, 3)
    assert buffer.pop_newest() == 3
    assert buffer.items() == [1, 2]


def test_full():
    assert filled(2, 1).full() == False
    assert filled(2, 1, 2).full() == True


def test_mean():
    assert filled(4, 1, 2, 6).mean() == 3.0
    assert filled(4, 1, 2, 6).mean(2) == 4.0
