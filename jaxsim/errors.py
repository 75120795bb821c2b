"""The one exception that bad input raises."""


class InputError(ValueError):
    """Input that cannot be used: one line that names the source, the key and the allowed values.

    Command-line entry points print the line on standard error and exit with status 2.
    """
