from checks import raised
from semver import bump, compare, compatible, newest, parse


def test_parse():
    assert parse("1.20.3") == (1, 20, 3, ())
    assert parse("1.0.0-rc.1") == (1, 0, 0, ("rc", "1"))


def test_refused():
    assert raised(parse, "1.2") == "ValueError"
    assert raised(parse, "01.2.3") == "ValueError"


def test_compare_numbers():
    assert compare("1.2.10", "1.2.9") == 1
    assert compare("2.0.0", "2.0.0") == 0


def test_pre_releases():
    assert compare("1.0.0-alpha", "1.0.0") == -1
    assert compare("1.0.0-alpha.2", "1.0.0-alpha.10") == -1


def test_bump():
    assert bump("1.2.3", "minor") == "1.3.0"
    assert bump("1.2.3", "patch") == "1.2.4"


def test_compatible():
    assert compatible("1.2.0", "1.9.0") == True
    assert compatible("1.2.0", "2.0.0") == False


def test_newest():
    assert newest(["1.0.0", "1.10.0", "1.9.0"]) == "1.10.0"
