from .arguments import Parser, number, parse_command, seed, whole, whole_seconds
from .compiler_options import add_options
from .errors import CheckError, one_line, run_command
from .files import check_output, put_result, write_text
from .known import GPUS, LEARNED, LINK_KINDS, MOST_JOBS, SHARING, did_you_mean
from .options import (
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    are_weights,
    from_mapping,
    given_keys,
    parse,
    parse_weights,
)
from .progress import progress
from .setup import (
    compile_for_evaluation,
    load_regions,
    load_world,
    make_room_for_programs,
    read_traces,
    use_compile_cache,
)
from .tables import as_text, best_plan_text, jobs_table, scheduler_table, suite_table

__all__ = [
    "GPUS",
    "LEARNED",
    "LINK_KINDS",
    "MOST_JOBS",
    "MOST_LAYOUTS",
    "MOST_OF_A_WORLD",
    "MOST_SCENARIOS",
    "SHARING",
    "CheckError",
    "Parser",
    "add_options",
    "are_weights",
    "as_text",
    "best_plan_text",
    "check_output",
    "compile_for_evaluation",
    "did_you_mean",
    "from_mapping",
    "given_keys",
    "jobs_table",
    "load_regions",
    "load_world",
    "make_room_for_programs",
    "number",
    "one_line",
    "parse",
    "parse_command",
    "parse_weights",
    "progress",
    "put_result",
    "read_traces",
    "run_command",
    "scheduler_table",
    "seed",
    "suite_table",
    "use_compile_cache",
    "whole",
    "whole_seconds",
    "write_text",
]
