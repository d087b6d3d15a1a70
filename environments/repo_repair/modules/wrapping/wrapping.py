"""Text in lines of a given width."""


def wrap(text, width):
    """Lines of at most `width` characters; longer words are cut."""
    if width < 1:
        raise ValueError("width must be at least 1")
    lines = []
    line = ""
    for word in text.split():
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not word:
            continue
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def justify(line, width):
    """Spread the words of a line over the width; more space goes to the left."""
    words = line.split()
    if len(words) < 2:
        return line
    spaces = width - sum(len(word) for word in words)
    gaps = len(words) - 1
    if spaces < gaps:
        raise ValueError("the line is too long")
    each, more = divmod(spaces, gaps)
    result = words[0]
    for number, word in enumerate(words[1:]):
        result += " " * (each + (1 if number < more else 0)) + word
    return result


def center(line, width, fill=" "):
    """The line amid the width; an odd character goes to the right."""
    missing = width - len(line)
    if missing <= 0:
        return line
    left = missing // 2
    return fill * left + line + fill * (missing - left)


def indent(text, prefix):
    """The prefix before every line that is not blank."""
    return "\n".join(prefix + line if line.strip() else line for line in text.split("\n"))


def shorten(text, width, mark="..."):
    """At most `width` characters; whole words, then the mark, where something is left out."""
    words = text.split()
    whole = " ".join(words)
    if len(whole) <= width:
        return whole
    kept = ""
    for word in words:
        longer = word if not kept else kept + " " + word
        if len(longer) + len(mark) > width:
            break
        kept = longer
    return kept + mark
