from .abreast import AT_ONCE, side_by_side
from .arguments import Parser, number, parse_command, seed, whole, whole_seconds
from .compiler_options import add_options
from .errors import CheckError, one_line, run_command
from .files import check_output, put_result, write_text
from .known import GPUS, LEARNED, LINK_KINDS, MOST_JOBS, OPTIONS, SHARING, did_you_mean
from .options import (
    BASE_SPREAD,
    GLOBAL_BATCH,
    LAYOUT_LIMIT,
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    are_weights,
    default_scenario,
    from_mapping,
    given_keys,
    parse,
    parse_weights,
)
from .prices import price_of_speed, prices_of_rows
from .progress import progress
from .real_training import module_output, room_command, run_module
from .running import check_job, read_running
from .setup import (
    compile_cache,
    compile_for_evaluation,
    load_regions,
    load_world,
    make_room_for_programs,
    note_efficiency,
    read_traces,
    use_compile_cache,
)
from .tables import as_text, best_plan_text, jobs_table, scheduler_table, suite_table

__all__ = [
    "AT_ONCE",
    "BASE_SPREAD",
    "GLOBAL_BATCH",
    "GPUS",
    "LAYOUT_LIMIT",
    "LEARNED",
    "LINK_KINDS",
    "MOST_JOBS",
    "MOST_LAYOUTS",
    "MOST_OF_A_WORLD",
    "MOST_SCENARIOS",
    "OPTIONS",
    "SHARING",
    "CheckError",
    "Parser",
    "add_options",
    "are_weights",
    "as_text",
    "best_plan_text",
    "check_job",
    "check_output",
    "compile_cache",
    "compile_for_evaluation",
    "default_scenario",
    "did_you_mean",
    "from_mapping",
    "given_keys",
    "jobs_table",
    "load_regions",
    "load_world",
    "make_room_for_programs",
    "module_output",
    "note_efficiency",
    "number",
    "one_line",
    "parse",
    "parse_command",
    "parse_weights",
    "price_of_speed",
    "prices_of_rows",
    "progress",
    "put_result",
    "read_running",
    "read_traces",
    "room_command",
    "run_command",
    "run_module",
    "scheduler_table",
    "seed",
    "side_by_side",
    "suite_table",
    "use_compile_cache",
    "whole",
    "whole_seconds",
    "write_text",
]
