"""Reading the tables of a report, and spoiling those of a run."""

import pandas as pd


def rows_of(text, first_cell):
    """Cells of the Markdown table whose header starts with `first_cell`, keyed by first column."""
    lines = text[text.index(f"| {first_cell} |") :].splitlines()
    table = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return {row[0].strip("*"): dict(zip(table[0], row, strict=True)) for row in table[2:]}


def drop_column(path, column):
    frame = pd.read_csv(path)
    frame.drop(columns=column).to_csv(path, index=False)
