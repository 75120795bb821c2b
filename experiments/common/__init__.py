"""What commands share.

options           command lines from dataclasses: a YAML file, then overrides, then checks
arguments         command lines with several commands
errors            how every command ends
files             writing results: a fault is one line and leaves nothing behind
setup             worlds from options, compiled programs kept between runs
compiler_options  options of XLA, set only where it knows them
tables            tables for the terminal
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
