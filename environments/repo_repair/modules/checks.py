"""What the tests of every repository use."""


def raised(call, *arguments):
    """The name of the exception that a call raises, or None."""
    try:
        call(*arguments)
    except Exception as error:
        return type(error).__name__
    return None
