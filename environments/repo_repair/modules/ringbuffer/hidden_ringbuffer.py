from checks import raised
from ringbuffer import RingBuffer


def filled(size, *items):
    buffer = RingBuffer(size)
    for item in items:
        buffer.push(item)
    return buffer


def test_size_is_checked():
    assert raised(RingBuffer, 0) == "ValueError"
    assert raised(RingBuffer, 1) == None


def test_size_of_one():
    buffer = filled(1, "a", "b", "c")
    assert buffer.items() == ["c"]
    assert buffer.dropped == 2
    assert buffer.pop() == "c"
    assert len(buffer) == 0


def test_around_the_end():
    buffer = filled(3, 1, 2, 3)
    assert buffer.pop() == 1
    buffer.push(4)
    assert buffer.pop() == 2
    buffer.push(5)
    assert buffer.items() == [3, 4, 5]
    assert buffer.dropped == 0
    assert buffer.full() == True


def test_newest_around_the_end():
    buffer = filled(3, 1, 2, 3, 4, 5)
    assert buffer.pop_newest() == 5
    assert buffer.pop_newest() == 4
    assert buffer.pop_newest() == 3
    assert raised(buffer.pop_newest) == "IndexError"


def test_push_after_the_newest_was_taken():
    buffer = filled(2, 1, 2)
    buffer.pop_newest()
    buffer.push(9)
    assert buffer.items() == [1, 9]
    assert buffer.dropped == 0


def test_indices_at_the_edges():
    buffer = filled(3, 1, 2, 3, 4)
    assert [buffer[0], buffer[1], buffer[2], buffer[-3]] == [2, 3, 4, 2]
    assert raised(buffer.__getitem__, 3) == "IndexError"
    assert raised(buffer.__getitem__, -4) == "IndexError"


def test_length():
    assert [len(filled(3)), len(filled(3, 1)), len(filled(3, 1, 2, 3, 4))] == [0, 1, 3]


def test_taken_slots_are_cleared():
    buffer = filled(2, 1, 2)
    buffer.pop()
    buffer.pop_newest()
    assert buffer.slots == [None, None]


def test_emptied_and_filled_again():
    buffer = filled(2, 1, 2)
    buffer.pop()
    buffer.pop()
    buffer.push(3)
    assert buffer.items() == [3]
    assert buffer.full() == False


def test_means():
    assert filled(3, 1, 2, 3, 4).mean() == 3.0
    assert filled(3, 1, 2, 3, 4).mean(1) == 4.0
    assert filled(3, 5).mean(10) == 5.0
    assert raised(filled(3).mean) == "ValueError"
    assert raised(filled(3, 1).mean, 0) == "ValueError"
