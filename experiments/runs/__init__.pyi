from .dry import compared, how_long, tell_dry

__all__ = ["compared", "how_long", "tell_dry"]
