from checks import raised
from ledger import Ledger


def opened():
    ledger = Ledger()
    ledger.open("ann", 1000)
    ledger.open("bob", 50)
    ledger.open("cid")
    return ledger


def test_open_twice():
    ledger = opened()
    assert raised(ledger.open, "ann") == "ValueError"
    assert raised(ledger.open, "dan", -1) == "ValueError"
    assert raised(ledger.open, "eve", 0) == None


def test_all_of_it():
    ledger = opened()
    ledger.transfer("ann", "cid", 1000)
    assert ledger.balances == {"ann": 0, "bob": 50, "cid": 1000}


def test_negative_amounts():
    ledger = opened()
    assert raised(ledger.transfer, "ann", "bob", -5) == "ValueError"
    assert raised(ledger.transfer, "ann", "bob", 1) == None


def test_unknown_accounts():
    ledger = opened()
    assert raised(ledger.transfer, "ann", "zoe", 5) == "KeyError"
    assert ledger.balances["ann"] == 1000


def test_numbers_of_entries():
    ledger = opened()
    assert [ledger.transfer("ann", "bob", 10), ledger.transfer("bob", "cid", 20)] == [0, 1]
    assert ledger.journal == [("ann", "bob", 10), ("bob", "cid", 20)]


def test_what_is_held_cannot_be_spent():
    ledger = opened()
    ledger.hold("ann", 300)
    ledger.hold("ann", 200)
    assert raised(ledger.transfer, "ann", "bob", 501) == "InsufficientFunds"
    assert raised(ledger.transfer, "ann", "bob", 500) == None
    assert ledger.available("ann") == 0


def test_hold_of_all():
    ledger = opened()
    assert raised(ledger.hold, "bob", 50) == None
    assert raised(ledger.hold, "bob", 1) == "InsufficientFunds"


def test_release_in_parts():
    ledger = opened()
    ledger.hold("ann", 300)
    assert ledger.release("ann", 100) == 100
    assert ledger.available("ann") == 800
    assert ledger.release("ann", 500) == 200
    assert ledger.holds["ann"] == 0


def test_reverse_is_an_entry():
    ledger = opened()
    ledger.transfer("ann", "bob", 100)
    assert ledger.reverse(0) == 1
    assert ledger.balances == {"ann": 1000, "bob": 50, "cid": 0}


def test_interest_is_rounded():
    ledger = opened()
    assert ledger.add_interest("bob", 10) == 1
    assert ledger.add_interest("cid", 10) == 0
    assert ledger.add_interest("ann", 0) == 0
    assert ledger.balances["bob"] == 51


def test_interest_below_a_half():
    ledger = Ledger()
    ledger.open("ann", 49)
    assert ledger.add_interest("ann", 10) == 0


def test_statement():
    ledger = opened()
    ledger.transfer("ann", "bob", 100)
    ledger.transfer("bob", "cid", 30)
    ledger.transfer("cid", "ann", 5)
    assert ledger.statement("bob") == [100, -30]
    assert ledger.statement("cid") == [30, -5]


def test_split_in_three():
    ledger = opened()
    ledger.open("dan")
    ledger.split("ann", ["bob", "cid", "dan"], 11)
    assert ledger.balances == {"ann": 989, "bob": 54, "cid": 4, "dan": 3}


def test_split_of_little():
    ledger = opened()
    ledger.split("ann", ["bob", "cid"], 1)
    assert ledger.balances == {"ann": 999, "bob": 51, "cid": 0}
    assert raised(ledger.split, "ann", ["bob", "cid"], 1000) == "InsufficientFunds"
    assert ledger.balances["ann"] == 999
