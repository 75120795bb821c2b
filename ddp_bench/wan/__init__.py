"""A wide-area network on one machine: namespaces, TUN devices and a process between them.

network     the resolved file: domains, directed links, trace
link        one directed link: queue, rate, delay, loss; pure
tun         TUN devices and the packets that come out of them
namespaces  make and remove the namespaces of a network
emulator    the process that moves packets
control     commands to it: counters, changes of links
lifecycle   networks come up and go down, after kill -9 too
capability  whether this process may make networks
clients     round trips and rates of a network that is up
check       measures the emulator itself
"""

from ddp_bench.wan.capability import missing
from ddp_bench.wan.control import ask
from ddp_bench.wan.lifecycle import command, down, inside_domain, is_up, socket_of, up
from ddp_bench.wan.network import LinkSpec, Network, Trace, queue_kb, read_network
from ddp_bench.wan.tun import DEVICE, address

__all__ = [
    "DEVICE",
    "LinkSpec",
    "Network",
    "Trace",
    "address",
    "ask",
    "command",
    "down",
    "inside_domain",
    "is_up",
    "missing",
    "queue_kb",
    "read_network",
    "socket_of",
    "up",
]
