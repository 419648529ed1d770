"""The one class of errors that is written for users to read."""


class UserError(Exception):
    """Bad input, found early: the message says what was wrong, where, and what to do about it.

    Entry points print the message alone, without a traceback, and exit with `exit_status`.
    """

    exit_status = 2
