"""Accounts in whole cents, with holds and a journal."""


class InsufficientFunds(Exception):
    """More was asked for than is available."""


class Ledger:
    """Balances never fall below their holds."""

    def __init__(self):
        self.balances = {}
        self.holds = {}
        self.journal = []

    def open(self, name, cents=0):
        """Open an account."""
        if name in self.balances:
            raise ValueError(f"{name} exists")
        if cents < 0:
            raise ValueError("negative amount")
        self.balances[name] = cents
        self.holds[name] = 0

    def available(self, name):
        """What may be spent."""
        return self.balances[name] - self.holds[name]

    def transfer(self, source, target, cents):
        """Move money; returns the number of the journal's entry."""
        if cents <= 0:
            raise ValueError("amounts are positive")
        if target not in self.balances:
            raise KeyError(target)
        if self.available(source) < cents:
            raise InsufficientFunds(source)
        self.balances[source] -= cents
        self.balances[target] += cents
        self.journal.append((source, target, cents))
        return len(self.journal) - 1

    def reverse(self, number):
        """Undo an entry by its opposite."""
        source, target, cents = self.journal[number]
        return self.transfer(target, source, cents)

    def hold(self, name, cents):
        """Set money aside."""
        if cents > self.available(name):
            raise InsufficientFunds(name)
        self.holds[name] += cents

    def release(self, name, cents):
        """Give up to so much back; returns how much."""
        given = min(cents, self.holds[name])
        self.holds[name] -= given
        return given

    def add_interest(self, name, per_mille):
        """Add interest, rounded half up; returns it."""
        interest = (self.balances[name] * per_mille + 500) // 1000
        self.balances[name] += interest
        return interest

    def statement(self, name):
        """Every change of an account, in order."""
        changes = []
        for source, target, cents in self.journal:
            if source == name:
                changes.append(-cents)
            if target == name:
                changes.append(cents)
        return changes

    def split(self, source, targets, cents):
        """Share an amount; what cannot be shared evenly goes to the first ones."""
        share, rest = divmod(cents, len(targets))
        if self.available(source) < cents:
            raise InsufficientFunds(source)
        for number, target in enumerate(targets):
            amount = share + (1 if number < rest else 0)
            if amount > 0:
                self.transfer(source, target, amount)
