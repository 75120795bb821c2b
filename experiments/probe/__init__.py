"""`hippo probe`: measure bandwidth and round trips between hosts, write a cluster file and a trace.

handshake  Both ends prove that they know the token
wire       Messages between them, and the limits
flow       One measurement: round trips, then bytes
server     What every host runs
rounds     All pairs, again and again
iperf3     The same from iperf3's JSON
results    The cluster file and the trace
"""
