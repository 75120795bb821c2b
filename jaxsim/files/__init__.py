"""Reading and refusing input: the one exception for bad input, YAML, CSV tables.

errors     The one exception that bad input raises, and the one way to check a settings object
tables     CSV tables as this project reads them: text first, and every fault names file, line
yaml_text  YAML as this project reads it: the safe subset, and no key twice
"""

from jaxsim.files.errors import (
    InputError,
    check_counts,
    check_fields,
    is_count,
    is_non_negative,
    is_positive,
    is_share,
)
from jaxsim.files.tables import numbers, read_text_table, require_columns
from jaxsim.files.yaml_text import load_yaml

__all__ = [
    "InputError",
    "check_counts",
    "check_fields",
    "is_count",
    "is_non_negative",
    "is_positive",
    "is_share",
    "load_yaml",
    "numbers",
    "read_text_table",
    "require_columns",
]
