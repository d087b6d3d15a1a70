from checks import raised
from csvrows import column, format_field, format_rows, parse, to_records


def test_nothing():
    assert parse("") == []
    assert to_records([]) == []
    assert format_rows([]) == ""


def test_last_line_without_its_break():
    assert parse("a,b\nc,d") == [["a", "b"], ["c", "d"]]


def test_empty_fields():
    assert parse("a,,b\n,\n") == [["a", "", "b"], ["", ""]]
    assert parse("a,") == [["a", ""]]


def test_break_within_quotes():
    assert parse('"one\ntwo",x\ny,z\n') == [["one\ntwo", "x"], ["y", "z"]]


def test_quote_amid_a_field():
    assert parse('a"b,c\n') == [['a"b', "c"]]


def test_doubled_quotes_at_the_ends():
    assert parse('"""a""",b') == [['"a"', "b"]]


def test_another_separator():
    assert parse("a;b,c\n", ";") == [["a", "b,c"]]
    assert format_rows([["a;b", "c,d"]], ";") == '"a;b";c,d\n'


def test_what_needs_quotes():
    assert [format_field(field) for field in ("plain", "a,b", 'a"b', "a\nb", "")] == [
        "plain", '"a,b"', '"a""b"', '"a\nb"', ""
    ]


def test_there_and_back():
    assert parse(format_rows([["a", 'b"c'], ["d\ne", ","]])) == [["a", 'b"c'], ["d\ne", ","]]


def test_records_of_wrong_length():
    assert raised(to_records, [["a", "b"], ["1"]]) == "ValueError"
    assert to_records([["a", "b"]]) == []


def test_several_records():
    assert to_records([["n"], ["1"], ["2"]]) == [{"n": "1"}, {"n": "2"}]


def test_column_by_name():
    assert column([["x", "y"], ["1", "2"]], "x") == ["1"]
    assert raised(column, [["x"]], "q") == "ValueError"
