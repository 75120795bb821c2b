"""Both ends prove that they know the token, and neither sends it.

    server -> client   MAGIC, 32 random bytes S
    client -> server   32 random bytes C, HMAC-SHA256(token, "client" S C)
    server -> client   HMAC-SHA256(token, "server" S C)

Either end closes the connection where the proof is wrong. What follows is neither encrypted nor signed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from pathlib import Path

from jaxsim.files import InputError

MAGIC = b"hippo-probe1"
NONCE, PROOF = 32, 32  # bytes
SHORTEST = 16  # bytes of a token
VARIABLE = "HIPPO_PROBE_TOKEN"


def read_token(path: str | None) -> bytes:
    """The shared token, from a file or from the environment. Raises InputError."""
    where = f"token: {path}" if path else VARIABLE
    try:
        text = Path(path).read_bytes() if path else os.environ.get(VARIABLE, "").encode()
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from None
    if not text and not path:
        raise InputError(f"token: expected --token FILE, or {VARIABLE} in the environment")
    if len(text.strip()) < SHORTEST:
        raise InputError(f"{where}: expected at least {SHORTEST} bytes, got {len(text.strip())}")
    return text.strip()


def greet_client(connection: socket.socket, token: bytes) -> bool:
    """The server's part; whether the client knows the token."""
    mine = secrets.token_bytes(NONCE)
    connection.sendall(MAGIC + mine)
    found = exactly(connection, NONCE + PROOF)
    theirs, proof = found[:NONCE], found[NONCE:]
    if not hmac.compare_digest(proof, _proof(token, b"client", mine, theirs)):
        return False
    connection.sendall(_proof(token, b"server", mine, theirs))
    return True


def greet_server(connection: socket.socket, token: bytes) -> None:
    """The client's part. Raises ConnectionError where the server does not know the token, or closes
    the connection because the client does not."""
    found = exactly(connection, len(MAGIC) + NONCE)
    if not found.startswith(MAGIC):
        raise ConnectionError("is no `hippo probe serve`")
    theirs, mine = found[len(MAGIC) :], secrets.token_bytes(NONCE)
    connection.sendall(mine + _proof(token, b"client", theirs, mine))
    try:
        proof = exactly(connection, PROOF)
    except ConnectionError:
        raise ConnectionError("refuses the token") from None
    if not hmac.compare_digest(proof, _proof(token, b"server", theirs, mine)):
        raise ConnectionError("does not know the token")


def _proof(token: bytes, role: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.new(token, role + server + client, hashlib.sha256).digest()


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes. Raises ConnectionError where the other end closes before."""
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionError("closes the connection")
        found += part
    return found
