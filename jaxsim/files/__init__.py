"""Reading and refusing input: limits, formats, values.

errors     `InputError`: one line that names the source, the key and what is allowed
reading    bytes and text of a file, never more than a limit, unpacked where it is packed
values     the one validator of numbers, counts, names, choices and mappings
shown      how a message shows what it was given: short, one line, control characters escaped
yaml_text  YAML: plain data, no key twice, limits
json_text  JSON: no key twice, no number beyond a float
tables     CSV tables: text first, every fault names file, line and column
"""

from jaxsim.files import values
from jaxsim.files.errors import (
    InputError,
    check_counts,
    check_fields,
    is_count,
    is_non_negative,
    is_positive,
    is_share,
)
from jaxsim.files.json_text import parse_json, read_json
from jaxsim.files.reading import is_file, is_there, read_bytes, read_text
from jaxsim.files.shown import listed, meant, one_line, shown
from jaxsim.files.tables import (
    check_names,
    known_names,
    numbers,
    read_header,
    read_text_table,
    require_columns,
)
from jaxsim.files.yaml_text import dump_yaml, load_yaml, parse_yaml, read_yaml

__all__ = [
    "InputError",
    "check_counts",
    "check_fields",
    "check_names",
    "dump_yaml",
    "is_count",
    "is_file",
    "is_non_negative",
    "is_positive",
    "is_share",
    "is_there",
    "known_names",
    "listed",
    "load_yaml",
    "meant",
    "numbers",
    "one_line",
    "parse_json",
    "parse_yaml",
    "read_bytes",
    "read_header",
    "read_json",
    "read_text",
    "read_text_table",
    "read_yaml",
    "require_columns",
    "shown",
    "values",
]
