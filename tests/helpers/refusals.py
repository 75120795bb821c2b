"""How a command refuses bad input."""

from experiments.evaluate import __main__ as evaluate
from experiments.train import __main__ as train


def refused(capsys, program, argv):
    """The one line on standard error with which a command ends with status 2."""
    capsys.readouterr()
    assert {"train": train, "evaluate": evaluate}[program].main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    return err
