"""Stock in several warehouses, by first in, first out."""


class Inventory:
    """Lots of (quantity, unit cost) for each item, oldest first."""

    def __init__(self):
        self.lots = {}

    def receive(self, item, quantity, cost):
        """Add a lot."""
        if quantity <= 0 or cost < 0:
            raise ValueError("quantities are positive, costs are not negative")
        self.lots.setdefault(item, []).append([quantity, cost])

    def on_hand(self, item):
        """How much there is."""
        return sum(quantity for quantity, _ in self.lots.get(item, []))

    def value(self):
        """What everything cost."""
        return sum(quantity * cost for lots in self.lots.values() for quantity, cost in lots)

    def issue(self, item, quantity):
        """Take from the oldest lots; returns what that cost."""
        if quantity > self.on_hand(item):
            raise ValueError(f"not enough {item}")
        spent = 0
        lots = self.lots.get(item, [])
        while quantity > 0:
            lot = lots[0]
            taken = min(quantity, lot[0])
            spent += taken * lot[1]
            quantity -= taken
            lot[0] -= taken
            if lot[0] == 0:
                lots.pop(0)
        return spent

    def below(self, levels):
        """Items of which less is there than their level, sorted."""
        return sorted(item for item, level in levels.items() if self.on_hand(item) < level)

    def average_cost(self, item):
        """Mean unit cost of what is there, or None."""
        amount = self.on_hand(item)
        if amount == 0:
            return None
        return sum(quantity * cost for quantity, cost in self.lots[item]) / amount


def reorder(on_hand, level, target, pack):
    """How many packs to order: none above the level, else up to the target, in whole packs."""
    if on_hand > level:
        return 0
    missing = target - on_hand
    return -(-missing // pack)


def rank(sales):
    """Items by sales, highest first, equal ones by name, with their share of the total in per cent."""
    total = sum(sales.values())
    if total == 0:
        return []
    ordered = sorted(sales, key=lambda item: (-sales[item], item))
    return [(item, round(100 * sales[item] / total)) for item in ordered]
