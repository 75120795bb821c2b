"""A directed link in numbers: when packets arrive, what a change does, what a full queue does."""

import struct

import pytest

from ddp_bench.wan import tun
from ddp_bench.wan.link import NEVER, Link
from ddp_bench.wan.network import LinkSpec

PIECE = 10_000  # [B]; at 8 Mbit/s it takes 10 ms


def link_of(rate_mbps=8.0, delay_ms=50.0, queue_kb=1000.0, loss=0.0):
    return Link(LinkSpec(rate_mbps, delay_ms, queue_kb, loss))


def offer(link, count, now=0.0):
    return [link.offer(b"%d" % n, PIECE, now) for n in range(count)]


def test_packets_arrive_after_transmission_and_delay():
    link = link_of()
    offer(link, 3)
    assert link.next_event() == pytest.approx(0.060)
    assert link.arrived(0.0599) == []
    assert link.arrived(0.0601) == [b"0"]
    assert link.arrived(0.0801) == [b"1", b"2"]
    assert link.next_event() == NEVER
    assert link.counters.packets == 3 and link.counters.wire_bytes == 3 * PIECE


def test_looking_late_or_often_does_not_change_when_packets_arrive():
    often, once = link_of(delay_ms=0.0), link_of(delay_ms=0.0)
    for link in (often, once):
        offer(link, 50)
    for millisecond in range(505):
        often.arrived(millisecond * 1e-3)
    assert len(once.arrived(0.4551)) == 45
    assert often.counters.packets == 50


def test_a_change_of_rate_takes_hold_inside_a_packet():
    link = link_of(delay_ms=0.0)
    offer(link, 2)
    link.change(LinkSpec(4.0, 0.0, 1000.0), 0.005)  # half of the first is sent
    assert link.next_event() == pytest.approx(0.015)
    assert len(link.arrived(0.0349)) == 1
    assert len(link.arrived(0.0351)) == 1


def test_an_outage_holds_what_waits_and_lets_it_go_on():
    link = link_of(delay_ms=0.0)
    offer(link, 1)
    link.change(LinkSpec(0.0, 0.0, 1000.0), 0.004)
    assert link.arrived(9.0) == [] and link.next_event() == NEVER and link.queued_bytes == PIECE
    link.change(LinkSpec(8.0, 0.0, 1000.0), 10.0)
    assert link.next_event() == pytest.approx(10.006)


def test_a_full_queue_drops_and_says_so():
    link = link_of(queue_kb=30.0)
    assert offer(link, 5) == [True, True, True, False, False]
    assert link.counters.dropped_bytes == 2 * PIECE
    link.arrived(0.011)
    assert offer(link, 2, 0.011) == [True, False]


def test_a_packet_larger_than_the_queue_passes_an_idle_link():
    assert offer(link_of(queue_kb=1.0), 1) == [True]


def test_a_shorter_delay_lets_no_packet_overtake():
    link = link_of(rate_mbps=800.0)
    offer(link, 1)
    link.arrived(0.001)
    link.change(LinkSpec(800.0, 1.0, 1000.0), 0.001)
    offer(link, 1, 0.001)
    assert link.arrived(0.049) == []
    assert len(link.arrived(0.0502)) == 2


def test_what_is_served_early_is_not_served_again():
    """Looking ahead of time must not make a link faster."""
    link, now, sent = link_of(delay_ms=0.0), 0.0, 0
    while now < 1.0:
        if not link.queued_bytes:
            link.offer(b"", PIECE, now)
        sent += len(link.arrived(now + 0.0004))
        now += 0.0001
    assert sent <= 100


def test_loss_is_a_share_of_packets():
    link = link_of(rate_mbps=1000.0, queue_kb=1e6, loss=0.2)
    kept = sum(offer(link, 5000))
    assert 0.77 < kept / 5000 < 0.83
    assert link.counters.lost_bytes == (5000 - kept) * PIECE


def packet(payload, gso_size=0, third_octet=4):
    """An IPv4/TCP packet as a TUN device hands it over, with a TCP header of 32 bytes."""
    size = 20 + 32 + payload
    header = struct.pack("<BBHHHH", 1, 1 if gso_size else 0, 0, gso_size, 0, 0)
    ip = struct.pack(
        "!BBHHHBBH4B4B", 0x45, 0, size, 0, 0, 64, 6, 0, *(10, 77, 1, 1), 10, 77, third_octet, 1
    )
    tcp = bytes(12) + bytes([8 << 4]) + bytes(19)
    return header + ip + tcp + bytes(payload)


def test_a_large_packet_takes_the_headers_of_its_segments():
    assert tun.wire_bytes(packet(1000)) == 1052
    assert tun.wire_bytes(packet(3000, gso_size=1000)) == 3 * 1052
    assert tun.wire_bytes(packet(2500, gso_size=1000)) == 2 * 1052 + 552


def test_the_address_says_which_domain_a_packet_is_for():
    assert tun.destination(packet(10, third_octet=4)) == 3
    assert tun.address(3) == "10.77.4.1"
    assert tun.destination(b"\0" * 10 + b"\x60" + bytes(40)) == -1
    assert tun.destination(b"short") == -1
