"""What commands share: command lines, errors, files, worlds, tables for the terminal.

arguments         Command lines with several commands, and the types of arguments that they take
compiler_options  Options of XLA, which ends the process for one that it does not know: ask
errors            One way for all entry points to end
files             Writing results and text files: a fault is one line and leaves nothing behind
options           Command lines from typed dataclasses: a YAML file, then overrides, then checks
setup             What the entry points share: compiled programs, loading of worlds
tables            Tables for the terminal
"""

from experiments.common.arguments import Parser, number, parse_command, seed, whole_seconds
from experiments.common.compiler_options import add_options
from experiments.common.errors import CheckError, run_command
from experiments.common.files import check_output, put_result, write_text
from experiments.common.options import are_weights, from_mapping, given_keys, parse, parse_weights
from experiments.common.setup import (
    compile_for_evaluation,
    load_regions,
    load_world,
    make_room_for_programs,
    note_efficiency,
    read_traces,
    use_compile_cache,
)
from experiments.common.tables import as_text, jobs_table, scheduler_table, suite_table

__all__ = [
    "CheckError",
    "Parser",
    "add_options",
    "are_weights",
    "as_text",
    "check_output",
    "compile_for_evaluation",
    "from_mapping",
    "given_keys",
    "jobs_table",
    "load_regions",
    "load_world",
    "make_room_for_programs",
    "note_efficiency",
    "number",
    "parse",
    "parse_command",
    "parse_weights",
    "put_result",
    "read_traces",
    "run_command",
    "scheduler_table",
    "seed",
    "suite_table",
    "use_compile_cache",
    "whole_seconds",
    "write_text",
]
