"""Compare schedulers on the same scenarios: `python -m experiments.evaluate --schedulers a,b,CKPT`."""

from __future__ import annotations

import sys

from experiments.common import (
    check_output,
    compile_for_evaluation,
    given_keys,
    jobs_table,
    parse,
    put_result,
    run_command,
    scheduler_table,
    suite_table,
)
from experiments.evaluate import low_communication
from experiments.evaluate.config import EvaluateConfig, check_inputs, resumed_config
from experiments.evaluate.evaluation import run_evaluation
from experiments.evaluate.jobs import WITHOUT_JOBS
from experiments.evaluate.suites import run_suite
from jaxsim.files import InputError


def evaluate(config: EvaluateConfig, given: list[str]) -> None:
    """Evaluate one scene or a suite of them and say where the records are; `given` are the keys
    that the command line set. Raises InputError, RecordError, KeyboardInterrupt."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    if config.resume is not None:
        config = resumed_config(config, given)
    elif config.jobs is not None and (unused := [key for key in given if key in WITHOUT_JOBS]):
        raise InputError(f"evaluate: {unused[0]}: cannot be set with --jobs, where nothing uses it")
    if config.suite is not None:
        summary, folder = run_suite(config, given, run_evaluation, check_inputs)
        text = suite_table(summary)
    elif config.jobs is not None:
        summary, folder = run_evaluation(config)
        text = jobs_table(summary)
    else:
        summary, folder = run_evaluation(config)
        text = scheduler_table(summary)
        if "low_communication" in summary:
            text += low_communication.tables(summary["low_communication"])
    if put_result(summary, config.json):
        print(text)
        print(f"run folder: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""

    def command() -> None:
        arguments = sys.argv[1:] if argv is None else argv
        config = parse(EvaluateConfig, arguments, "evaluate")
        compile_for_evaluation()
        evaluate(config, given_keys(EvaluateConfig, arguments))

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
