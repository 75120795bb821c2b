from . import ddp
from .language import LANGUAGES
from .report import write_report

__all__ = ["LANGUAGES", "ddp", "write_report"]
