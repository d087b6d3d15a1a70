"""A queue of fixed size in a circle: new items may push out old ones."""


class RingBuffer:
    """Items by age: index 0 is the oldest, -1 the newest."""

    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be at least 1")
        self.slots = [None] * size
        self.start = 0
        self.count = 0
        self.dropped = 0

    def push(self, item):
        """Add an item; the oldest makes room where there is none."""
        end = (self.start + self.count) % len(self.slots)
        self.slots[end] = item
        if self.count == len(self.slots):
            self.start = (self.start + 1) % len(self.slots)
            self.dropped += 1
        else:
            self.count += 1

    def pop(self):
        """Take the oldest item."""
        if self.count == 0:
            raise IndexError("empty")
        item = self.slots[self.start]
        self.slots[self.start] = None
        self.start = (self.start + 1) % len(self.slots)
        self.count -= 1
        return item

    def pop_newest(self):
        """Take the newest item."""
        if self.count == 0:
            raise IndexError("empty")
        end = (self.start + self.count - 1) % len(self.slots)
        item = self.slots[end]
        self.slots[end] = None
        self.count -= 1
        return item

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.slots[(self.start + index) % len(self.slots)]

    def items(self):
        """All items, oldest first."""
        return [self[index] for index in range(self.count)]

    def full(self):
        """Whether the next item pushes one out."""
        return self.count == len(self.slots)

    def mean(self, last=None):
        """The mean of the newest items, or of all."""
        wanted = self.items() if last is None else self.items()[max(0, self.count - last) :]
        if not wanted:
            raise ValueError("nothing to average")
        return sum(wanted) / len(wanted)
