"""The one exception type that is shown to a user as a plain sentence."""


class UsageError(ValueError):
    """What was given cannot be used: the message says what it was, what is accepted, what to do.

    On a command line only the message is printed (no traceback) and the exit code is 1;
    from Python it is an ordinary :class:`ValueError`.
    """
