"""Comma-separated values: quoted fields, doubled quotes, line breaks within quotes."""


def parse(text, separator=","):
    """Rows of fields; a line break at the end makes no row."""
    rows = []
    row = []
    field = ""
    quoted = False
    position = 0
    while position < len(text):
        character = text[position]
        if quoted:
            if character == '"' and text[position + 1 : position + 2] == '"':
                field += '"'
                position += 1
            elif character == '"':
                quoted = False
            else:
                field += character
        elif character == '"' and field == "":
            quoted = True
        elif character == separator:
            row.append(field)
            field = ""
        elif character == "\n":
            row.append(field)
            rows.append(row)
            row, field = [], ""
        else:
            field += character
        position += 1
    if quoted:
        raise ValueError("a quote is not closed")
    if field or row:
        row.append(field)
        rows.append(row)
    return rows


def format_field(field, separator=","):
    """A field as text, in quotes where it must be."""
    if any(character in field for character in (separator, '"', "\n")):
        return '"' + field.replace('"', '""') + '"'
    return field


def format_rows(rows, separator=","):
    """Rows as text, each line ended."""
    return "".join(separator.join(format_field(field, separator) for field in row) + "\n" for row in rows)


def to_records(rows):
    """Rows below the first as dictionaries by the first."""
    if not rows:
        return []
    header = rows[0]
    records = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} fields instead of {len(header)}")
        records.append(dict(zip(header, row)))
    return records


def column(rows, name):
    """The values of one column."""
    index = rows[0].index(name)
    return [row[index] for row in rows[1:]]
