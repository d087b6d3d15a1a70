"""Runs tests inside the sandbox: `python3 -c THIS shown|silent FILE TEST_SECONDS`. Standard library alone.

    shown    for the policy: which tests fail, where, and what was compared, as text
    silent   for the judge: what every comparison's left side was, as one JSON line a test

A test is a function without arguments that asserts `expression == value`, over and over. Silent tests compare
nothing: the judge does, outside. So the values that are expected never come in here, and code that pretends, catches,
patches or exits wins nothing. Each test runs in a fork of its own and is ended when it has used its processor time:
on a busy machine it fails no earlier.
"""

import ast
import json
import os
import signal
import sys

DEEPEST = 8
LONGEST_LINE = 300


def plain(value, depth=0):
    """A value as JSON that names its types, so that 1, 1.0 and True differ; other types than plain ones are named."""
    kind = type(value)
    if depth > DEEPEST:
        return ["too deep"]
    if value is None or kind in (bool, int, str):
        return [kind.__name__, value]
    if kind is float:
        return ["float", repr(value)]
    if kind in (list, tuple):
        return [kind.__name__, [plain(item, depth + 1) for item in value]]
    if kind in (set, frozenset):
        return [kind.__name__, sorted((plain(item, depth + 1) for item in value), key=json.dumps)]
    if kind is dict:
        return ["dict", [[plain(key, depth + 1), plain(item, depth + 1)] for key, item in value.items()]]
    return ["other", str(kind.__name__)]


class Difference(AssertionError):
    """A comparison that failed."""


class Asserts(ast.NodeTransformer):
    """Turns `assert left == right` into a call: of `recorded(left)`, or of `compared(left, right, line)`."""

    def __init__(self, silent):
        self.silent = silent

    def visit_Assert(self, node):
        test = node.test
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
            return node
        left, right = test.left, test.comparators[0]
        if self.silent:
            call = ast.Call(ast.Name("recorded", ast.Load()), [left], [])
        else:
            call = ast.Call(ast.Name("compared", ast.Load()), [left, right, ast.Constant(node.lineno)], [])
        return ast.copy_location(ast.Expr(call), node)


def compared(left, right, line):
    """Compare, and say both sides."""
    if plain(left) != plain(right):
        raise Difference(f"line {line}: got {left!r}, expected {right!r}")


def load(path, silent, recorded):
    """The tests of a file by name, in order."""
    with open(path) as file:
        tree = ast.parse(file.read())
    tree = ast.fix_missing_locations(Asserts(silent).visit(tree))
    names = {"__name__": "tests", "recorded": recorded, "compared": compared}
    exec(compile(tree, os.path.basename(path), "exec"), names)
    return {name: test for name, test in names.items() if name.startswith("test_")}


def apart(action, seconds):
    """Call in a child process; returns what it wrote, and whether it ended by itself."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            told = action()
            with open(writing, "w") as file:
                file.write(told)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        told = file.read()
    _, status = os.waitpid(pid, 0)
    return told, not os.WIFSIGNALED(status)


def failure_of(test):
    """What went wrong, in a line; empty if nothing did."""
    try:
        test()
    except Difference as difference:
        return str(difference)
    except BaseException as error:
        return f"{place_of(error)}{type(error).__name__}: {error}"
    return ""


def place_of(error):
    """The file and line that raised, without a folder."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}: "


def show(path, seconds):
    """Run the tests and print what fails."""
    tests = {}
    problem = failure_of(lambda: tests.update(load(path, False, None)))
    if problem or not tests:
        print(f"no test can be run: {problem[:LONGEST_LINE] or 'there is none'}")
        return
    failed = []
    for name, test in tests.items():
        told, ended = apart(lambda test=test: "." + failure_of(test), seconds)
        if told != ".":
            reason = told[1 : LONGEST_LINE + 1] or ("it ended the process" if ended else "it took too long")
            failed.append(f"FAILED {name}\n    {reason}")
    print(f"{len(tests) - len(failed)} of {len(tests)} tests pass")
    print("\n".join(failed))


def record(path, seconds):
    """Run the tests silently; a line for each with what was recorded before it ended or failed."""
    values = []

    def one(test):
        try:
            test()
        except BaseException as error:
            values.append(["raised", type(error).__name__])
        return json.dumps(values)

    for name, test in load(path, True, lambda value: values.append(plain(value))).items():
        told, _ = apart(lambda test=test: one(test), seconds)
        print(json.dumps({"test": name, "values": told}))
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    (show if sys.argv[1] == "shown" else record)(sys.argv[2], int(sys.argv[3]))
