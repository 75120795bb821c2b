"""A report from run folders.

report    `python -m analysis.report RUN [RUN ...]`: the page of one run or several
language  the page in Chinese, sentence by sentence (templates/)
html      the page as one file with tooltips on its figures
sections  what is said about a run, by its kind
ddp       the page of a data-parallel run, in two languages (templates/)
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
