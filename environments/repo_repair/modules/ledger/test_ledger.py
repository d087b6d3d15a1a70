from checks import raised
from ledger import Ledger


def opened():
    ledger = Ledger()
    ledger.open("ann", 1000)
    ledger.open("bob")
    return ledger


def test_transfer():
    ledger = opened()
    assert ledger.transfer("ann", "bob", 300) == 0
    assert ledger.balances == {"ann": 700, "bob": 300}


def test_too_much():
    ledger = opened()
    assert raised(ledger.transfer, "ann", "bob", 1001) == "InsufficientFunds"
    assert raised(ledger.transfer, "ann", "bob", 0) == "ValueError"


def test_holds():
    ledger = opened()
    ledger.hold("ann", 600)
    assert ledger.available("ann") == 400
    assert ledger.release("ann", 1000) == 600


def test_reverse():
    ledger = opened()
    ledger.transfer("ann", "bob", 300)
    ledger.reverse(0)
    assert ledger.statement("ann") == [-300, 300]


def test_interest():
    ledger = opened()
    assert ledger.add_interest("ann", 25) == 25


def test_split():
    ledger = opened()
    ledger.open("cid")
    ledger.split("ann", ["bob", "cid"], 101)
    assert ledger.balances == {"ann": 899, "bob": 51, "cid": 50}
