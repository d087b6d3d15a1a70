from checks import raised
from semver import bump, compare, compatible, newest, parse


def test_zeros():
    assert parse("0.0.0") == (0, 0, 0, ())
    assert raised(parse, "1.00.0") == "ValueError"


def test_more_that_is_refused():
    assert raised(parse, "1.2.3.4") == "ValueError"
    assert raised(parse, "1.a.3") == "ValueError"
    assert raised(parse, "1.2.3-") == "ValueError"
    assert raised(parse, "1.2.3-a..b") == "ValueError"


def test_dash_within_the_pre_release():
    assert parse("1.2.3-x-y.7") == (1, 2, 3, ("x-y", "7"))


def test_order_of_numbers():
    assert [compare("1.2.3", other) for other in ("1.2.4", "1.3.0", "2.0.0", "1.2.3", "1.2.2", "0.9.9")] == [
        -1, -1, -1, 0, 1, 1
    ]


def test_order_of_pre_releases():
    assert compare("1.0.0", "1.0.0-rc.1") == 1
    assert compare("1.0.0-alpha", "1.0.0-alpha.1") == -1
    assert compare("1.0.0-alpha.1", "1.0.0-alpha") == 1
    assert compare("1.0.0-alpha.beta", "1.0.0-alpha.1") == 1
    assert compare("1.0.0-1", "1.0.0-alpha") == -1
    assert compare("1.0.0-beta.11", "1.0.0-beta.2") == 1
    assert compare("1.0.0-beta", "1.0.0-alpha") == 1
    assert compare("1.0.0-rc.1", "1.0.0-rc.1") == 0


def test_bump_major():
    assert bump("1.2.3", "major") == "2.0.0"
    assert bump("0.9.9", "major") == "1.0.0"


def test_bump_minor_drops_the_rest():
    assert bump("3.4.5-rc.1", "minor") == "3.5.0"


def test_bump_patch_of_a_pre_release():
    assert bump("1.2.3-rc.1", "patch") == "1.2.3"
    assert bump("1.2.9", "patch") == "1.2.10"


def test_bump_what_is_not():
    assert raised(bump, "1.2.3", "build") == "ValueError"


def test_caret_above_one():
    assert compatible("1.2.3", "1.2.3") == True
    assert compatible("1.2.3", "1.2.2") == False
    assert compatible("1.2.3", "1.3.0-alpha") == True


def test_caret_below_one():
    assert compatible("0.2.3", "0.2.9") == True
    assert compatible("0.2.3", "0.3.0") == False
    assert compatible("0.0.1", "0.0.1") == True


def test_newest_of_several():
    assert newest(["2.0.0-rc.1", "2.0.0", "1.9.9"]) == "2.0.0"
    assert newest(["0.1.0"]) == "0.1.0"
