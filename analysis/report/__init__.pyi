from . import ddp
from .report import write_report

__all__ = ["ddp", "write_report"]
