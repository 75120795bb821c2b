"""Reading and refusing input.

errors     `InputError`: one line that names the source, the key and what is allowed
yaml_text  YAML: the safe subset, no key twice
tables     CSV tables: text first, every fault names file, line and column
"""

from jaxsim.files.errors import (
    InputError,
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
