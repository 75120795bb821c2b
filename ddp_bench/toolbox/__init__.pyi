from .checkpoints import CheckpointFailed, checkpoint_errors
from .command import Room, room_parser, run_room
from .launch import Ranks, RanksFailed, on_ranks
from .llama import SHAPES, Block, Llama, LlamaShape, batch_of, token_loss
from .text import table
from .timing import (
    Repeats,
    Timed,
    device_of,
    interleave,
    mean_seconds,
    median_interval,
    stopwatch,
    times_to_last,
)

__all__ = [
    "SHAPES",
    "Block",
    "CheckpointFailed",
    "Llama",
    "LlamaShape",
    "Ranks",
    "RanksFailed",
    "Repeats",
    "Room",
    "Timed",
    "batch_of",
    "checkpoint_errors",
    "device_of",
    "interleave",
    "mean_seconds",
    "median_interval",
    "on_ranks",
    "room_parser",
    "run_room",
    "stopwatch",
    "table",
    "times_to_last",
    "token_loss",
]
