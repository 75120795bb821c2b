"""A report from run folders: text and figures by the kind of run.

report    `python -m analysis.report RUN [RUN ...]`: the page of one run or several
ddp       the page of a data-parallel run: templates in two languages, filled from what was measured
sections  what a report says about one run, by the kind of run
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
