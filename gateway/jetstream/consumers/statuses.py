"""The status messages of deliveries: header blocks whose words clients compare.

A status never has a payload. Those that end a pull early tell what is left of it, because clients
subtract that from what they wait for.
"""

from __future__ import annotations

from typing import Final

NO_MESSAGES: Final = b"NATS/1.0 404 No Messages\r\n\r\n"
REQUESTS_PENDING: Final = b"NATS/1.0 408 Requests Pending\r\n\r\n"
EXCEEDED_MAX_WAITING: Final = b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
CONSUMER_DELETED: Final = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
LEADERSHIP_CHANGE: Final = b"NATS/1.0 409 Leadership Change\r\n\r\n"
REQUIRED_API_LEVEL: Final = b"NATS/1.0 412 Required Api Level\r\n\r\n"
PIN_MISMATCH: Final = b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
#: What NATS itself says of a subject without a listener. Where a wildcard listens, we must.
NO_RESPONDERS: Final = b"NATS/1.0 503\r\n\r\n"
FLOW_CONTROL_REQUEST: Final = b"NATS/1.0 100 FlowControl Request\r\n\r\n"

REQUEST_TIMEOUT: Final = "408 Request Timeout"
SIZE_EXCEEDED: Final = "409 Message Size Exceeds MaxBytes"
BATCH_COMPLETED: Final = "409 Batch Completed"
SERVER_SHUTDOWN: Final = "409 Server Shutdown"
WRONG_PIN: Final = "423 Nats-Wrong-Pin-Id"


def ended(status: str, messages: int, size_bytes: int) -> bytes:
    """Return the end of a pull, with what is left of it."""
    return (
        f"NATS/1.0 {status}\r\nNats-Pending-Messages: {messages}\r\n"
        f"Nats-Pending-Bytes: {size_bytes}\r\n\r\n"
    ).encode()


def idle_heartbeat(consumer_seq: int, stream_seq: int, stalled: str = "") -> bytes:
    """Return a heartbeat: the numbers of the last delivery, and where flow control waits for."""
    rest = f"Nats-Consumer-Stalled: {stalled}\r\n" if stalled else ""
    return (
        f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {consumer_seq}\r\n"
        f"Nats-Last-Stream: {stream_seq}\r\n{rest}\r\n"
    ).encode()
