"""Modes that a plan names by number: the order of a pipeline's operations, what is computed twice.

Members are integers, so that plans hold them in int32 arrays and JAX compares them as such. Each has
the word that users and files say and the label that tables print.
"""

from __future__ import annotations

import enum
from typing import Self

from jaxsim.files import InputError, values


class Mode(enum.IntEnum):
    """A number with the word that users say and the label that tables print."""

    word: str
    label: str

    def __new__(cls, value: int, word: str, label: str) -> Self:
        mode = int.__new__(cls, value)
        mode._value_, mode.word, mode.label = value, word, label
        return mode

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """What users may say, in the order of the numbers."""
        return tuple(mode.word for mode in cls)

    @classmethod
    def of(cls, said: object, key: str) -> Self:
        """The mode that a user names by its word (or a program by its number).

        Raises InputError that begins with `key` and lists the words for anything else.
        """
        for mode in cls:
            if said == mode.word or (not isinstance(said, bool) and said == mode.value):
                return mode
        raise InputError(
            values.unknown(f"{key}: unknown {cls.__name__.lower()}", said, cls.words())
        )


class Schedule(Mode):
    """In which order a pipeline's stages run their operations (`jaxsim.step_time.schedules`).

    The first three differ in the micro-batches that a stage at distance d from the last (counted
    from 1) may hold in flight: d, 2 d - 1, all of them.
    """

    ONE_F_ONE_B = 0, "1f1b", "1F1B"  # Narayanan et al., SOSP 2019
    EAGER_1F1B = 1, "eager_1f1b", "eager 1F1B"  # Zhuang et al., MLSys 2023: hides the wire
    GPIPE = 2, "gpipe", "GPipe"  # Huang et al., NeurIPS 2019
    INTERLEAVED = 3, "interleaved", "interleaved"  # Narayanan et al., SC 2021
    ZERO_BUBBLE = 4, "zero_bubble", "ZB-H1"  # Qi et al., ICLR 2024
    GREEDY = 5, "greedy", "greedy"  # list scheduling on the network as it is


class Recompute(Mode):
    """What the backward pass computes again instead of storing it."""

    NONE = 0, "none", "nothing"
    SELECTIVE = 1, "selective", "attention"  # the attention core
    FULL = 2, "full", "whole layers"


ALL_SCHEDULES = tuple(Schedule)
# Of the default menu of lower choices.
MENU_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE)
# Timed operation by operation: too long for a menu, which is asked of every plan.
PLAYED_SCHEDULES = tuple(one for one in Schedule if one not in MENU_SCHEDULES)
INTERLEAVED_CHUNKS = 2  # model chunks per stage under Schedule.INTERLEAVED
