from .dry import tell_dry

__all__ = ["tell_dry"]
