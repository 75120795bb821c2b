from .hook import plan_file

__all__ = ["plan_file"]
