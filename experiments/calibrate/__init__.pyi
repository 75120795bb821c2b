from .fit import profiles_for

__all__ = ["profiles_for"]
