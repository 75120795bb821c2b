"""Errors a user can act on."""


class ConfigError(ValueError):
    """Bad input. One line: the file or flag, the key, and the allowed values; exit status 2."""


class RankLost(RuntimeError):
    """A message between ranks failed; which rank is to blame has been said."""
