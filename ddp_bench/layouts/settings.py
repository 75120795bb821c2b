"""Options of the layouts room."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddp_bench.errors import ConfigError
from ddp_bench.layouts.layout import Impossible, Layout, check_layout, layouts_of, parse_layout
from ddp_bench.options import check_options, option
from ddp_bench.toolbox import Room

KINDS = ("predict", "moves", "loop")
MODELS = ("tiny", "small", "wide", "deep")
CASES = ",".join(
    [f"{ranks}:{model}:16x64" for ranks in (2, 4, 8) for model in ("small", "wide", "deep")]
    + ["4:small:16x256"]
)
CASE = re.compile(r"(\d{1,2}):(\w+):(\d{1,4})x(\d{1,4})")
LONGEST, MOST_RANKS = 1024, 64


@dataclass(frozen=True)
class Case:
    """One configuration: ranks, model, sequences of a batch, tokens of a sequence."""

    ranks: int
    model: str
    rows: int
    length: int

    @property
    def name(self) -> str:
        """As in the option."""
        return f"{self.ranks}:{self.model}:{self.rows}x{self.length}"


@dataclass(frozen=True)
class LayoutsSettings:
    """Every option; the help text is in the metadata."""

    what: str = option("all", f"parts of the work, comma separated: {', '.join(KINDS)}, or all")
    cases: str = option(CASES, "RANKS:MODEL:ROWSxTOKENS, comma separated")
    layouts: str = option("all", "layouts, comma separated, such as dp2,tp2-zero0; or all that fit")
    profile_rounds: int = option(9, "rounds of a profile", "[1, 10000]")
    rounds: int = option(3, "rounds in which all layouts train", "[1, 10000]")
    steps: int = option(3, "timed steps of a layout in a round", "[1, 10000]")
    finalists: int = option(
        3, "fastest layouts, and fastest in prediction, that are measured again", "[1, 100]"
    )
    final_rounds: int = option(7, "rounds in which they are", "[1, 10000]")
    move_steps: int = option(3, "steps before a move, and behind it; 0 = no moves", "[0, 10000]")
    start: str = option("", "first layout of the adaptive loop; empty = the slowest in prediction")
    adapt_steps: int = option(60, "steps of the adaptive loop; 0 = none", "[0, 1000000]")
    interval: int = option(20, "steps between two profiles of the loop", "[1, 1000000]")
    horizon: int = option(200, "steps over which the loop counts a gain", "[1, 100000000]")
    hysteresis: float = option(1.5, "gain that the loop asks for, in costs of a move", "[0, inf)")
    seed: int = option(0, "of weights and samples", "[0, 1000000]")
    timeout_s: float = option(120.0, "a rank silent for this long ends the run [s]", "(0, 1000000]")

    def __post_init__(self) -> None:
        check_options(self)
        if not self.kinds() or not set(self.kinds()) <= set(KINDS):
            raise ConfigError(f"what is {self.what!r}: allowed all, {', '.join(KINDS)}")
        cases = self.case_list()
        if self.layouts != "all":
            self._check_named()
        for case in cases:
            self.layouts_for(case)
        if self.start and self.adapt_steps and "loop" in self.kinds():
            known = [layout.name for layout in self.layouts_for(cases[0])]
            if self.start not in known:
                raise ConfigError(f"start is {self.start!r}: allowed {', '.join(known)}")

    def kinds(self) -> list[str]:
        """Parts of the work of `what`."""
        if self.what == "all":
            return list(KINDS)
        return [kind.strip() for kind in self.what.split(",") if kind.strip()]

    def case_list(self) -> list[Case]:
        """Configurations of `cases`."""
        out = []
        for text in self.cases.split(","):
            found = CASE.fullmatch(text.strip())
            if not found or found[2] not in MODELS:
                raise ConfigError(
                    f"cases is {text.strip()!r}: allowed is RANKS:MODEL:ROWSxTOKENS, such as "
                    f"2:small:16x64, with a model of {', '.join(MODELS)}"
                )
            case = Case(int(found[1]), found[2], int(found[3]), int(found[4]))
            within = 2 <= case.ranks <= MOST_RANKS and case.rows and 2 <= case.length <= LONGEST
            if not within:
                raise ConfigError(
                    f"cases is {case.name!r}: allowed are 2 to {MOST_RANKS} ranks, at least one row "
                    f"and 2 to {LONGEST} tokens"
                )
            out.append(case)
        return out

    def layouts_for(self, case: Case) -> list[Layout]:
        """Layouts of a configuration; ConfigError where there is none."""
        from ddp_bench.toolbox import (
            SHAPES,  # it imports torch, which refusals of options do not need
        )

        found = layouts_of(SHAPES[case.model], case.ranks, case.rows)
        if self.layouts != "all":
            names = {layout.name for layout in self._named()}
            found = [layout for layout in found if layout.name in names]
        if not found:
            raise ConfigError(f"cases is {case.name!r}: no layout of {self.layouts!r} fits it")
        return found

    def _named(self) -> list[Layout]:
        try:
            return [parse_layout(name.strip()) for name in self.layouts.split(",")]
        except Impossible as error:
            raise ConfigError(f"layouts: {error}") from None

    def _check_named(self) -> None:
        """ConfigError for a layout that fits no case."""
        from ddp_bench.toolbox import SHAPES

        cases = self.case_list()
        for layout in self._named():
            errors = []
            for case in cases:
                try:
                    check_layout(layout, SHAPES[case.model], case.ranks, case.rows)
                except Impossible as error:
                    errors.append(str(error))
            if len(errors) == len(cases):
                raise ConfigError(f"layouts: {errors[0]} (case {cases[0].name})")


ROOM = Room(
    name="layouts",
    text="Choose how ranks share a model: layouts predicted, trained, and changed while training.",
    settings=LayoutsSettings,
    quick={
        "cases": "2:tiny:16x64",
        "profile_rounds": 3,
        "rounds": 1,
        "steps": 2,
        "finalists": 2,
        "final_rounds": 2,
        "move_steps": 2,
        "adapt_steps": 16,
        "interval": 8,
    },
    work="ddp_bench.layouts.work:work",
)
