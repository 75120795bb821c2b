from .channel import Channel, Message
from .hook import SwitchingHook
from .links import Link, drawn_link
from .methods import METHODS, Method
from .selector import LinkEstimate, MethodCost, Played, Selector, play
from .settings import ROOM, CommunicationSettings
from .sharded import SCATTERING, ShardedHook
from .training import Run, Trained, train_on_rank

__all__ = [
    "METHODS",
    "ROOM",
    "SCATTERING",
    "Channel",
    "CommunicationSettings",
    "Link",
    "LinkEstimate",
    "Message",
    "Method",
    "MethodCost",
    "Played",
    "Run",
    "Selector",
    "ShardedHook",
    "SwitchingHook",
    "Trained",
    "drawn_link",
    "play",
    "train_on_rank",
]
