from checks import raised
from csvrows import column, format_rows, parse, to_records


def test_plain():
    assert parse("a,b\n1,2\n") == [["a", "b"], ["1", "2"]]


def test_quotes():
    assert parse('"a,b",c\n') == [["a,b", "c"]]
    assert parse('"say ""hi""",x') == [['say "hi"', "x"]]


def test_open_quote():
    assert raised(parse, '"abc') == "ValueError"


def test_format():
    assert format_rows([["a", "b,c"], ['"', ""]]) == 'a,"b,c"\n"""",\n'


def test_records():
    assert to_records([["x", "y"], ["1", "2"]]) == [{"x": "1", "y": "2"}]


def test_column():
    assert column([["x", "y"], ["1", "2"], ["3", "4"]], "y") == ["2", "4"]
