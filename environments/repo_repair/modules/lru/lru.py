"""A cache that forgets what has not been used for longest."""


class LRUCache:
    """Holds at most `capacity` entries; reading or writing one makes it the newest."""

    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.entries = {}
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        """The value of a key, or the default."""
        if key not in self.entries:
            self.misses += 1
            return default
        self.hits += 1
        value = self.entries.pop(key)
        self.entries[key] = value
        return value

    def put(self, key, value):
        """Store a value; returns the key that was forgotten for it, or None."""
        self.entries.pop(key, None)
        evicted = None
        if len(self.entries) >= self.capacity:
            evicted = next(iter(self.entries))
            del self.entries[evicted]
        self.entries[key] = value
        return evicted

    def peek(self, key):
        """The value of a key without making it newer."""
        return self.entries.get(key)

    def resize(self, capacity):
        """Change the capacity; returns the keys that were forgotten, oldest first."""
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        forgotten = []
        while len(self.entries) > capacity:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
            forgotten.append(oldest)
        return forgotten

    def keys(self):
        """All keys, oldest first."""
        return list(self.entries)

    def hit_rate(self):
        """Share of reads that found something; 0 without any."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else 0.0
