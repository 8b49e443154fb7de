"""Every limit of the system, each with its reason; their relations are asserted below.

Sizes are bytes, times are seconds. A peer may be stricter than these, never laxer.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Names
#: A store name plus `.stream.00000001.db-wal` must fit in the 255 bytes of one file name.
MAX_NAME_BYTES: Final = 200
#: NATS has no limit on tokens; 16 keeps subject matching in its server cheap.
MAX_NAME_TOKENS: Final = 16
#: 1,000 characters of four UTF-8 bytes each, rounded up.
MAX_KEY_BYTES: Final = 4 * KIB

# Time
#: How much faster than time passes a server's clock may run to catch up with a wall clock that is
#: ahead: an hour's excursion for five minutes then moves it by half a minute, and a right step is
#: followed within ten times its length.
CLOCK_GAIN_RATIO: Final = 0.1
#: A wall clock so far ahead is told of in the log, and a store's time by the doctor. Hosts that
#: keep time differ by less.
CLOCK_LEAP_SECONDS: Final = 10.0

# The bus
#: Between two looks at a connection: whether anything was received since the last one.
BUS_LOOK_SECONDS: Final = 0.8
#: So many looks without anything received call for a PING, and so many for another connection: 4.8
#: s at the most after the last byte. nats-server is given 2.4 s for the PONG, a tenth of which it
#: never takes.
BUS_PING_LOOKS: Final = 2
BUS_DEAD_LOOKS: Final = 5
#: What `close` waits for the system to take what was published; a healthy one takes it in
#: milliseconds.
BUS_CLOSE_SECONDS: Final = 0.5

# Values and frames
#: NATS's default max_payload is 1 MiB. A frame leaves this much of it to the protocol's own
#: headers.
FRAME_RESERVE_BYTES: Final = 4 * KIB
#: A value that travels in one piece. With the largest key and headers it still fits in one frame.
MAX_VALUE_BYTES: Final = 1000 * 1000
#: A value above this is compressed by its writer; below it a frame's header and the mark eat up the
#: gain.
COMPRESS_ABOVE_BYTES: Final = KIB
#: A larger value goes to the server in chunks of this size. Half of a megabyte was no faster, and
#: four in flight are what a client and a server hold of it.
CHUNK_BYTES: Final = 256 * KIB
#: The largest chunk that a server takes.
MAX_CHUNK_BYTES: Final = 512 * KIB
#: Chunks of one value that may be in flight, either way.
CHUNKS_IN_FLIGHT: Final = 4
#: The largest value of all: far below what a SQLite file of 1 KiB pages can hold, 4 TiB.
MAX_LARGE_VALUE_BYTES: Final = 64 * KIB * MIB
#: The id of an upload: as long as a UUID.
UPLOAD_ID_BYTES: Final = 16
#: The digest of a large value.
SHA256_BYTES: Final = 32
#: Uploads of one store that are not finished. Each takes the space of what it has.
MAX_STAGED_UPLOADS: Final = 64
#: An upload that gets no chunk for this long was given up, and is removed.
UPLOAD_RETENTION_SECONDS: Final = 3600.0
#: All header names and texts of one message (JetStream: 64 KiB), but those that clients of ours
#: add.
MAX_HEADERS_BYTES: Final = 16 * KIB
#: The smallest max_payload of a nats-server that holdfast works with: its own default.
MIN_PAYLOAD_BYTES: Final = MIB
#: A subject: the longest of ours has a prefix and a store name of MAX_NAME_BYTES each, a tenant of
#: 63 and some letters.
MAX_SUBJECT_BYTES: Final = KIB
#: A line of the NATS protocol. A nats-server's own limit for clients is 4 KiB; INFO names all
#: servers of a NATS cluster.
MAX_NATS_LINE_BYTES: Final = MIB
#: Operations in one frame. Bounds the work of one tick per client and the size of a reply.
MAX_FRAME_OPERATIONS: Final = 4096
#: `msg_id`: as long as any UUID or hash needs; it is kept in an index.
MAX_MSG_ID_BYTES: Final = 256
#: Seqs or keys that one delete operation may name.
MAX_DELETE_COUNT: Final = 4096

# What a payload may be made of
#: Arrays and maps within each other. The protocol's own are nine deep at the most (a header of an
#: operation of a batch); a thousand would end Python's recursion where such a value is shown or
#: packed.
MAX_NESTING: Final = 16
#: Elements of one array, and of one map, that a server takes: room is made for as many as are
#: announced.
MAX_ARRAY_LENGTH: Final = 2 * MAX_FRAME_OPERATIONS
#: What an element of an argument (a seq, a key, an ack) may take in memory beside its bytes on the
#: wire.
ELEMENT_BYTES: Final = 64
#: Seqs, revisions, times and counts: SQLite's integers.
MIN_INTEGER: Final = -(1 << 63)
MAX_INTEGER: Final = (1 << 63) - 1
#: Terms of coordinators: one each time that one starts, so none comes near it but by forgery.
MAX_TERM: Final = 1 << 48
#: What an error tells: so many fields of so much text, and elements of a list, whatever it quotes.
MAX_ERROR_FIELDS: Final = 16
MAX_ERROR_TEXT_CHARACTERS: Final = 512
MAX_ERROR_ELEMENTS: Final = 16

# Consumers
#: Consumers of one stream: each is a cursor in the owner's memory while the stream is in use.
MAX_CONSUMERS: Final = 64
#: The most that `max_ack_pending` of a consumer may be: each is a row, and an element in memory.
MAX_ACK_PENDING: Final = 10_000
#: Messages of one fetch, and acks in one operation: what a page has.
MAX_FETCH: Final = 4096
#: The longest `ack_wait_seconds`, and delay of a message that is handed back.
MAX_ACK_WAIT_SECONDS: Final = 30.0 * 86_400

# Reading
#: One page of `get_all`: large enough to amortise a round trip, small enough not to delay a tick.
PAGE_BYTES: Final = 512 * KIB
PAGE_ROWS: Final = 4096
#: Tenants in one answer of the coordinator: some 60 bytes and one look into its index each.
TENANTS_PAGE_ROWS: Final = 1024

#: How long a slice of reads takes before the answers to writes have their turn, but for the read
#: that it is at: what 4,096 reads of one message take.
READ_SLICE_SECONDS: Final = 0.02

# Client
#: Frames one client may have in flight to one server: one being synced, one being applied, and
#: two on the way. More only moves the queue from the client to the server.
FRAMES_IN_FLIGHT: Final = 4
#: Frames that are late and wait for nothing but the server's bucket: they take no other's place.
#: With an outage of hours in mind, and a look at each of them every so often.
MAX_STORED_FRAMES: Final = 1024
#: A caller hears about a write in this time, one way or the other.
OPERATION_TIMEOUT_SECONDS: Final = 30.0
#: The longest timeout of a client or a call: a retry must find the outcome of the first try, also
#: when its last frame travelled long.
MAX_OPERATION_TIMEOUT_SECONDS: Final = 300.0
#: An unanswered frame is sent again after this long. Far above a slow sync, far below the timeout.
FRAME_TIMEOUT_SECONDS: Final = 2.0
#: A server that leaves a frame unanswered for this long is asked whether it is there: a frame that
#: died with its server gets no `no responders` of its own, the question does.
PING_SECONDS: Final = 0.2
#: Operations that wait in a client before a caller is made to wait for room, and their bytes.
MAX_WAITING_OPERATIONS: Final = 65536
MAX_WAITING_BYTES: Final = 64 * MIB
#: So many wait at first, and at least: more as answers come, fewer when they come late.
FIRST_WAITING_OPERATIONS: Final = 4096
MIN_WAITING_OPERATIONS: Final = 256
#: Undelivered changes a subscription holds; beyond it drops them and catches up from the owner.
SUBSCRIPTION_BUFFER_CHANGES: Final = 8192
#: What a failed transaction had read, which the next one of that store reads at once; and of how
#: many stores.
MAX_CONTENDED_KEYS: Final = 1024
MAX_CONTENDED_STORES: Final = 64
#: What a live replica holds that the owner has not confirmed; beyond it a write is refused as
#: `busy`. A hundred thousand keys may be set in one go: a write cannot wait, and takes half a KiB
#: beside its value.
MAX_UNSAVED_WRITES: Final = 131_072
MAX_UNSAVED_BYTES: Final = 64 * MIB
#: The same in bytes, of all subscriptions of a client together; each may hold an eighth of it.
SUBSCRIPTION_BUFFER_BYTES: Final = 64 * MIB
#: How often a follower asks for the head of a store that said nothing, at first and at most: the
#: lost *last* broadcast is noticed by this alone.
FOLLOW_CHECK_SECONDS: Final = 2.0
FOLLOW_CHECK_MAX_SECONDS: Final = 30.0
#: Heads that a follower asks for in one turn: as many as half a frame takes.
FOLLOW_CHECK_STORES: Final = 2048
#: How often a subscription to a pattern lists the stores, to find those that were born unheard.
PATTERN_LIST_SECONDS: Final = 30.0
#: With more stores than that the listing comes less often by as much.
PATTERN_LIST_STORES: Final = 10_000
#: Idle stores of a pattern that are asked for their heads each second: a lost broadcast of one is
#: noticed in the end, and a million of them cost the servers next to nothing.
PATTERN_IDLE_CHECKS_PER_SECOND: Final = 16
#: Stores of a pattern that are caught up at once.
PATTERN_CATCH_UPS: Final = 256

# Heartbeats and failure detection
HEARTBEAT_SECONDS: Final = 0.5
#: Five heartbeats: one lost message or one long collection of garbage is not a death.
SILENCE_SECONDS: Final = 2.5
#: How long a suspected server has to answer a probe.
PROBE_TIMEOUT_SECONDS: Final = 0.5
#: A server whose event loop has not turned for longer does not count as alive, though it says so:
#: far above any one piece of work in the loop, and as long as a client may well wait before it
#: gives up.
LOOP_STALL_SECONDS: Final = 10.0
CONTROL_TIMEOUT_SECONDS: Final = 2.0
#: How long the client of a network file system may answer from what it remembers: 1 s of GlusterFS
#: was the longest that was measured.
NETWORK_CACHE_SECONDS: Final = 1.2

# Persist server
#: Bytes of frames that wait for a tick; beyond it the answer is `busy`.
MAX_INBOX_BYTES: Final = 64 * MIB
#: What a group counts there beside its bytes on the wire and ELEMENT_BYTES: a frame can be ten
#: thousand of them.
GROUP_BYTES: Final = 128
#: Refusals, and answers to pings, that wait for a turn of a server; and answers of control messages
#: that wait for the bus. Further ones are dropped, as if lost: their askers ask again.
MAX_WAITING_REFUSALS: Final = 16384
#: Answers and reads that wait for a sync. With more of them a server gathers instead of answering:
#: retries and refusals put nothing into the log, and would wait without bound behind a sync that
#: hangs.
MAX_WAITING_ANSWERS: Final = 65536
#: Bytes of effects applied but not yet synced; beyond it the server gathers instead of applying.
MAX_UNSYNCED_BYTES: Final = 8 * MIB
#: One commit log segment; retired whole.
LOG_SEGMENT_BYTES: Final = 8 * MIB
#: The whole commit log of a server, hence its recovery work.
LOG_CAP_BYTES: Final = 64 * MIB
#: A server's log in the bucket: one object each so often at the most, 4 puts a second are $52 a
#: month; so soon after an idle spell; at once when so much waits.
LOG_OBJECT_SECONDS: Final = 0.25
LOG_OBJECT_IDLE_SECONDS: Final = 0.01
LOG_OBJECT_BYTES: Final = 4 * MIB
#: Changes that wait for the bucket. Beyond it a `stored` write is answered `busy`, and stores whose
#: changes are dropped here begin again with a snapshot.
MAX_UNSTORED_BYTES: Final = 64 * MIB
#: `stored` writes that wait for the bucket; more are answered `busy`.
MAX_UNSTORED_ANSWERS: Final = 65536
#: Objects of a log, about nine minutes of a busy server: beyond it the stores that hold the oldest
#: ones are snapshotted, since a recovery reads every object.
MAX_LOG_OBJECTS: Final = 2048
#: A sync of the log that takes longer counts as a disk that hangs: its server gives no sign of life
#: any more, so that others take over. Disks that are merely busy have been seen to take seconds.
SYNC_STALL_SECONDS: Final = 5.0
#: The same of a log in the bucket, where seconds are an ordinary hiccup.
PUT_STALL_SECONDS: Final = 20.0
#: Changes of one kv that wait in memory for their SQLite transaction: of a key that is set again
#: before it, only the last is written.
MAX_PENDING_CHANGES: Final = 4096
#: Of one stream, where nothing is saved by waiting longer: some 2.5 ms of the loop at a time.
MAX_PENDING_MESSAGES: Final = 1024
MAX_PENDING_BYTES: Final = MIB
#: Chunks of one store that wait in memory while its file is checkpointed; further ones wait in the
#: inbox.
MAX_PENDING_CHUNK_BYTES: Final = 4 * MIB
#: Chunks of values that are gone which one checkpoint removes from a file, 256 MiB: some 0.2 s.
MAX_SWEPT_CHUNKS: Final = 1024
#: Store files a server keeps open, if memory and descriptors allow
#: (`persist/lifecycle/capacity.py`). Beyond it each use of another store costs a close and an open,
#: so it is far more than are in use at a time.
MAX_OPEN_STORES: Final = 20_000
#: A store nobody used for this long is checkpointed and closed. Closing a new store and opening it
#: again costs some 8 ms and two syncs, so whoever comes back within a minute shall find it open.
IDLE_CLOSE_SECONDS: Final = 60.0
#: Images of cold stores that are read in memory, one and all of them: above, they get files again.
MAX_COLD_READ_BYTES: Final = 256 * KIB
MAX_COLD_MEMORY_BYTES: Final = 64 * MIB
#: A read of the archive that takes longer is answered `unavailable`; clients ask again.
ARCHIVE_READ_SECONDS: Final = 20.0
#: How often open stores are looked at for messages that may leave for the archive.
ARCHIVE_LOOK_SECONDS: Final = 60.0
#: What a blocking client takes over from the loop's thread at once, of changes that are there: so
#: many that the turn of two threads costs little for each.
TAKEN_OVER_CHANGES: Final = 512
TAKEN_OVER_BYTES: Final = 1024 * 1024
#: Work posted to the loop of the blocking clients by threads that do not wait for it; beyond it
#: they do. A producer could otherwise run ahead of the loop without bound.
MAX_POSTED_CALLS: Final = 4096
#: How long the outcome of a write is kept for its retry; far above MAX_OPERATION_TIMEOUT_SECONDS.
OUTCOME_RETENTION_SECONDS: Final = 600.0
#: Groups of one writer and store from the first that it waits for on, of each of which the outcome
#: is kept: a client sends no more, and a server says `busy`. One whose first group waits for the
#: bucket has so much beside it; a frame seldom has more than one group of a store.
MAX_WRITER_OUTCOMES: Final = 4096
#: The same in bytes of outcomes, of which most have 20; and those of all writers of a store. With
#: more of these only a writer gets in that waits for nothing else.
MAX_WRITER_OUTCOME_BYTES: Final = 4 * MIB
MAX_OUTCOME_BYTES: Final = 64 * MIB
#: Writers of one store whose last outcomes are kept, each for OUTCOME_RETENTION_SECONDS: beyond it
#: new ones are `busy`, and none that is known is forgotten for them. Each client is one; a shell
#: script that appends fifty times a second is 30,000.
MAX_WRITERS: Final = 65536
#: How long a `msg_id` is remembered (JetStream's default duplicate window).
DEDUPE_WINDOW_SECONDS: Final = 120.0
#: The longest that `dedupe_window_seconds` of a store may be: every msg_id of a window is a row.
MAX_DEDUPE_WINDOW_SECONDS: Final = 86_400.0
#: The msg_ids that a store remembers, some hundred bytes of its file each: 35,000 a second for the
#: default window. With so many, new ones are refused rather than old ones forgotten early.
MAX_MSG_IDS: Final = 4 * MIB
#: The longest ttl and max_age_seconds: a hundred years, so that times stay in 64 bits.
MAX_RETENTION_SECONDS: Final = 100.0 * 366 * 86_400
#: The description of a store. It lies in the one row that every transaction writes.
MAX_DESCRIPTION_BYTES: Final = 512
#: Stores that one server destroys at a time for applications, all tenants and one of them: each
#: holds its store, and takes some syncs and a thread. Operators' jobs have as many again.
MAX_DESTROYING: Final = 32
MAX_DESTROYING_OF_TENANT: Final = 4
#: Messages that the loop removes from a file at once, some 40 ms; of more, a thread removes them,
#: so many in each transaction.
MAX_TRIMMED_ROWS: Final = 16_384
MAX_TRIMMED_BYTES: Final = 16 * MIB
#: Messages or keys that one turn of the loop removes from a store for its limits; the next goes on.
MAX_EVICTED_ROWS: Final = 4 * MAX_DELETE_COUNT
#: How often open stores are looked at for what is due to expire. Reads do not wait for that.
EXPIRY_CHECK_SECONDS: Final = 1.0
#: Deletes and trims a store remembers for followers that were away; past it they get a `reset`.
MAX_CHANGE_LOG_ROWS: Final = 10_000

assert MAX_KEY_BYTES + MAX_VALUE_BYTES + MAX_HEADERS_BYTES + MAX_MSG_ID_BYTES + 512 < (
    MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES
)
assert PAGE_BYTES <= MIN_PAYLOAD_BYTES // 2
assert MAX_NESTING >= 9
assert max(MAX_FRAME_OPERATIONS, MAX_DELETE_COUNT, MAX_FETCH, PAGE_ROWS) < MAX_ARRAY_LENGTH
assert CHUNK_BYTES <= MAX_CHUNK_BYTES <= PAGE_BYTES
assert MAX_VALUE_BYTES < MAX_LARGE_VALUE_BYTES
assert MIN_WAITING_OPERATIONS <= FIRST_WAITING_OPERATIONS <= MAX_WAITING_OPERATIONS
assert FRAMES_IN_FLIGHT * MIN_PAYLOAD_BYTES < MAX_WAITING_BYTES
assert OPERATION_TIMEOUT_SECONDS < UPLOAD_RETENTION_SECONDS
assert PING_SECONDS * 4 < FRAME_TIMEOUT_SECONDS
assert FRAME_TIMEOUT_SECONDS * 4 < OPERATION_TIMEOUT_SECONDS
assert OPERATION_TIMEOUT_SECONDS * 4 < OUTCOME_RETENTION_SECONDS
assert OPERATION_TIMEOUT_SECONDS < MAX_OPERATION_TIMEOUT_SECONDS <= OUTCOME_RETENTION_SECONDS / 2
assert MAX_STORED_FRAMES + FRAMES_IN_FLIGHT <= MAX_WRITER_OUTCOMES // 2
assert MAX_WRITER_OUTCOME_BYTES * 8 <= MAX_OUTCOME_BYTES
assert SUBSCRIPTION_BUFFER_BYTES >= 16 * PAGE_BYTES
assert FOLLOW_CHECK_STORES + PATTERN_CATCH_UPS <= MAX_FRAME_OPERATIONS
assert DEDUPE_WINDOW_SECONDS <= MAX_DEDUPE_WINDOW_SECONDS <= MAX_RETENTION_SECONDS
assert HEARTBEAT_SECONDS * 4 < SILENCE_SECONDS
assert 0 < CLOCK_GAIN_RATIO < 1
assert PROBE_TIMEOUT_SECONDS < SILENCE_SECONDS
assert SILENCE_SECONDS < LOOP_STALL_SECONDS
assert LOOP_STALL_SECONDS + SILENCE_SECONDS < OPERATION_TIMEOUT_SECONDS
assert HEARTBEAT_SECONDS * 4 < SYNC_STALL_SECONDS
assert SYNC_STALL_SECONDS + SILENCE_SECONDS < OPERATION_TIMEOUT_SECONDS
assert ARCHIVE_READ_SECONDS < OPERATION_TIMEOUT_SECONDS
assert SYNC_STALL_SECONDS < PUT_STALL_SECONDS < OPERATION_TIMEOUT_SECONDS
assert LOG_SEGMENT_BYTES * 4 <= LOG_CAP_BYTES
assert LOG_OBJECT_IDLE_SECONDS < LOG_OBJECT_SECONDS < FRAME_TIMEOUT_SECONDS
assert LOG_OBJECT_BYTES <= MAX_UNSYNCED_BYTES // 2
assert MAX_UNSYNCED_BYTES < LOG_CAP_BYTES
