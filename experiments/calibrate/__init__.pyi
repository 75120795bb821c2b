from .fit import fit_all, left_out_rows
from .machine import entry_name, fit_machine
from .machine_file import merits, predicted_rows, steps_table
from .microbench import Bench, is_microbench, read_bench

__all__ = [
    "Bench",
    "entry_name",
    "fit_all",
    "fit_machine",
    "is_microbench",
    "left_out_rows",
    "merits",
    "predicted_rows",
    "read_bench",
    "steps_table",
]
