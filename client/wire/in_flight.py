"""The frames in flight: sent to servers, and not completely answered.

Pure. A frame becomes stale when it is lost or late: its writes are sent again in newer frames, its
reads are queued again, and a late answer still counts.

Invariant: at most FRAMES_IN_FLIGHT frames are unanswered at a server, not counting those that only
wait for its bucket.
"""

from __future__ import annotations

import math
from typing import Final

from holdfast.client.wire.credit import Credit
from holdfast.client.wire.effects import SendFrame
from holdfast.client.wire.filling import fill
from holdfast.client.wire.frame import Frame, FrameBuilder
from holdfast.client.wire.schedule import IDLE, READY, Schedule
from holdfast.client.wire.store_queue import ServerQueue
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.frames import encode_request
from holdfast.protocol.limits import (
    FRAME_TIMEOUT_SECONDS,
    FRAMES_IN_FLIGHT,
    MAX_FRAME_OPERATIONS,
    MAX_STORED_FRAMES,
    OPERATION_TIMEOUT_SECONDS,
    PING_SECONDS,
)

#: An unanswered frame doubles the timeout of the next one, up to this: a slow server must not drown
#: in copies.
FRAME_TIMEOUT_MAX_SECONDS: Final = 4 * FRAME_TIMEOUT_SECONDS
#: How often to ask whether the stores of a silent server have another owner.
SILENCE_LOOK_SECONDS: Final = 1.0
#: A frame below this size is not worth splitting. Two frames are enough to keep both sides busy:
#: with 1,000 concurrent appends to one stream, two frames of 512 took a tenth less of both
#: processors than four of 256, and gave a tenth more appends.
SPREAD_OPERATIONS: Final = 512
#: The same for reads, of which a frame has at most half of what is unanswered: else few callers who
#: wait for their answers move in lockstep, and while the server reads the client waits. 64 gets at
#: once in two frames of 32 were 1.5 times as fast for a direct client, with a tenth more processor
#: time; frames of 24 and 16 were slower again. Appends are not split: each part would cost a sync.
SPREAD_READS: Final = 32


class FramesInFlight:
    """The frames of one client that are not completely answered."""

    def __init__(
        self, writer: bytes, limit_bytes: int, schedule: Schedule, credit: Credit
    ) -> None:
        self.frames: dict[int, Frame] = {}
        #: The earliest time at which `sweep` has something to do.
        self.timeout_at = math.inf
        #: Pings to send: they ask whether a server is alive.
        self.questions: list[SendFrame] = []
        self._writer = writer
        self._limit_bytes = limit_bytes
        self._schedule = schedule
        self._credit = credit
        self._number = 0
        #: The server of each unanswered ping.
        self._pings: dict[int, ServerQueue] = {}

    def send(self, server_queue: ServerQueue, now: float) -> SendFrame | None:
        """Return a frame with what waits for a server, or None if nothing does."""
        self._number += 1
        # Spread the operations over the frames that may be in flight, so that the client works on
        # one answer while the server works on the next frame.
        pending_count = self._credit.pending_count
        limit_operations = min(
            MAX_FRAME_OPERATIONS, max(SPREAD_OPERATIONS, pending_count // FRAMES_IN_FLIGHT)
        )
        limit_reads = min(limit_operations, max(SPREAD_READS, (pending_count + 1) // 2))
        builder = FrameBuilder(
            self._number, self._writer, self._limit_bytes, limit_operations, limit_reads
        )
        line = server_queue.line
        while line:
            queue = line.popleft()
            if queue.state is not READY or queue.server_queue is not server_queue:
                continue
            complete, dropped = fill(builder, queue)
            self._credit.pending_count -= dropped
            if not complete:
                line.append(queue)
                break
            queue.state = IDLE
        if not builder.groups:
            return None
        frame = Frame(builder.number, server_queue, builder.groups, now)
        self.frames[builder.number] = frame
        server_queue.frames_in_flight += 1
        # Applies to frames of only `stored` writes: four small ones must not block all other frames
        # until the next object.
        self._give_up_place(frame)
        self.timeout_at = min(self.timeout_at, now + PING_SECONDS)
        return SendFrame(server_queue.server, builder.number, builder.payload())

    def take_questions(self) -> list[SendFrame]:
        """Return the pings to send now, and forget them."""
        questions, self.questions = self.questions, []
        return questions

    def answered_late(self, number: int) -> None:
        """Note an answer to a ping or a forgotten frame: the server is alive."""
        self._pings.pop(number, None)

    def server_asked(self, number: int) -> ServerQueue | None:
        """Return the server to which a frame or a ping was sent."""
        frame = self.frames.get(number)
        return frame.server_queue if frame is not None else self._pings.pop(number, None)

    def close_group(self, frame: Frame, index: int) -> None:
        """Note that a group of a frame is answered, in whatever way."""
        frame.groups[index] = None
        frame.open_count -= 1
        if frame.open_count == 0:
            self.close(frame)

    def close(self, frame: Frame) -> None:
        """Forget a frame that is completely answered, or never will be."""
        del self.frames[frame.number]
        if frame.counts:
            frame.counts = False
            frame.server_queue.frames_in_flight -= 1
        elif not frame.stale:
            frame.server_queue.stored_frames -= 1

    def give_up(self, server_queue: ServerQueue | None = None) -> None:
        """Make the frames of one server, or of all, stale. The caller requeues their writes."""
        for frame in self.frames.values():
            if server_queue is None or frame.server_queue is server_queue:
                self._give_up(frame)

    def refused(self, server_queue: ServerQueue) -> None:
        """Note that the server received none of the frames in flight to it, and make them
        stale."""
        for frame in self.frames.values():
            if frame.server_queue is server_queue and not frame.stale:
                for group in frame.groups:
                    if group is not None and group.frame == frame.number:
                        group.refused_count += 1
        self.give_up(server_queue)

    def owner_changed(self, server_queue: ServerQueue | None) -> None:
        """Treat all frames to a silent server as lost, because one of its stores
        has another owner."""
        for frame in list(self.frames.values()):
            if frame.server_queue is server_queue and not frame.stale:
                self._lost(frame)

    def sweep(self, now: float) -> None:
        """Send again what stayed unanswered for too long, and forget frames that nobody
        will answer.

        While a server is silent, ask the coordinator every SILENCE_LOOK_SECONDS whether its stores
        have another owner, because resends are rarer than that.
        """
        earliest = math.inf
        for frame in list(self.frames.values()):
            server_queue = frame.server_queue
            if not frame.stale and now >= frame.sent_at + server_queue.timeout_seconds:
                self._lost(frame)
                server_queue.timeout_seconds = min(
                    FRAME_TIMEOUT_MAX_SECONDS, 2 * server_queue.timeout_seconds
                )
            if frame.stale:
                if now >= frame.sent_at + OPERATION_TIMEOUT_SECONDS:
                    self.close(frame)
                else:
                    earliest = min(earliest, frame.sent_at + OPERATION_TIMEOUT_SECONDS)
                continue
            if frame.counts and now >= frame.sent_at + PING_SECONDS:
                self._give_up_place(frame)
            ping_at = max(frame.sent_at, server_queue.pinged_at) + PING_SECONDS
            if now >= ping_at:
                self._ping(server_queue, now)
                ping_at = now + PING_SECONDS
            earliest = min(earliest, frame.sent_at + server_queue.timeout_seconds, ping_at)
            if server_queue.timeout_seconds > FRAME_TIMEOUT_SECONDS and frame.looked_at <= now:
                frame.looked_at = now + SILENCE_LOOK_SECONDS
                # One store is enough: if another server has it, all that was sent counts as lost.
                # Asking for thousands would make the coordinator as busy as the late server.
                self._schedule.unresolved += [
                    group.queue.key
                    for group in frame.groups
                    if group is not None and group.queue.server_queue is server_queue
                ][:1]
        self.timeout_at = earliest

    def expire_reads(self, now: float) -> float:
        """Fail reads in flight that are past their deadline. Return the earliest deadline of
        the others.
        """
        earliest = math.inf
        for frame in self.frames.values():
            for group in frame.groups:
                if group is not None and not group.counter and not frame.stale:
                    at = group.queue.expire_operations(group.operations, now, sent=True)
                    earliest = min(earliest, at)
        return earliest

    def validate(self) -> int:
        """Check the invariants. Return the number of reads in flight."""
        count = 0
        for frame in self.frames.values():
            for group in frame.groups:
                if group is not None and not group.counter and group.frame == frame.number:
                    count += len(group.operations)
        for each in self._schedule.servers.values():
            live = [f for f in self.frames.values() if f.server_queue is each and not f.stale]
            assert sum(f.counts for f in live) == each.frames_in_flight <= FRAMES_IN_FLIGHT
            assert len(live) - each.frames_in_flight == each.stored_frames <= MAX_STORED_FRAMES
        return count

    def _give_up_place(self, frame: Frame) -> None:
        """Stop counting a frame that only waits for the server's bucket, so that another can
        be sent."""
        server_queue = frame.server_queue
        if server_queue.stored_frames < MAX_STORED_FRAMES and frame.waits_for_bucket:
            frame.counts = False
            server_queue.frames_in_flight -= 1
            server_queue.stored_frames += 1

    def _give_up(self, frame: Frame) -> None:
        """Make a frame stale. Its reads are queued again; the caller requeues its writes."""
        if frame.stale:
            return
        frame.stale = True
        if frame.counts:
            frame.counts = False
            frame.server_queue.frames_in_flight -= 1
        else:
            frame.server_queue.stored_frames -= 1
        for group in frame.groups:
            if group is not None and not group.counter and group.frame == frame.number:
                group.frame = 0
                group.queue.requeue_reads(group.operations)
                self._schedule.active[group.queue.key] = group.queue

    def _lost(self, frame: Frame) -> None:
        """Send the unanswered part of a lost or late frame again, now."""
        self._give_up(frame)
        error = UnavailableError(reason=f"server {frame.server_queue.server!r} does not answer")
        for group in frame.groups:
            if group is None:
                continue
            queue = group.queue
            if group.frame == frame.number:
                queue.requeue()
            queue.last_error = error
            self._schedule.unresolved.append(queue.key)
            self._schedule.resume(queue)

    def _ping(self, server_queue: ServerQueue, now: float) -> None:
        """Ask a late server whether it is alive. Frames in flight to a server that died are lost
        silently, but a ping to it is answered with `no responders`."""
        self._pings.pop(server_queue.ping, None)
        self._number += 1
        server_queue.ping, server_queue.pinged_at = self._number, now
        self._pings[server_queue.ping] = server_queue
        question = encode_request(self._writer, ())
        self.questions.append(SendFrame(server_queue.server, server_queue.ping, question))
