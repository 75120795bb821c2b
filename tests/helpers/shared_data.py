"""Measured and published figures beside the repository: tests that need them skip without them."""

import os
from pathlib import Path

import pytest

# A folder with low_communication/, measured/ and the like: HIPPO_DATA, or data/ in a folder shared/ of
# some folder above.
ROOTS = [folder / "shared" / "data" for folder in Path(__file__).resolve().parents]


def shared_data(name: str) -> Path:
    """The file of that name; skips the test where there is none."""
    roots = [Path(os.environ["HIPPO_DATA"])] if "HIPPO_DATA" in os.environ else ROOTS
    found = [root / name for root in roots if (root / name).is_file()]
    if not found:
        pytest.skip(f"{name} is not here: set HIPPO_DATA to the folder that holds it")
    return found[0]
