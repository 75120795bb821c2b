"""Reading and refusing input: limits, formats, values, and the one exception for bad input.

errors     The one exception that bad input raises, and the one way to check a settings object
json_text  JSON as this project reads it: no key twice, no number beyond a float
reading    Bytes and text of a file, never more than a limit, unpacked where it is packed
shown      How a message shows what it was given: short, on one line, control characters escaped
tables     CSV tables as this project reads them: text first, and every fault names file, line
values     The one validator of values: numbers, counts, names, choices, mappings
yaml_text  YAML as this project reads and writes it: plain data, no key twice, limits
"""

from jaxsim.files import values
from jaxsim.files.errors import (
    InputError,
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
