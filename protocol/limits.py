"""Every limit of the system, each with its reason. Their relations are asserted below.

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
#: A token travels in NATS's CONNECT, whose line nats-server limits to 4,096 bytes by default.
MAX_TOKEN_BYTES: Final = 2048
#: Patterns of stores in a token. A server compares a name with each of them, once per store.
MAX_TOKEN_PATTERNS: Final = 32
#: 1,000 characters of four UTF-8 bytes each, rounded up.
MAX_KEY_BYTES: Final = 4 * KIB

# Time
#: How much faster than real time a server's clock may run to catch up with a wall clock that is
#: ahead. A wall clock that is an hour off for five minutes moves it by half a minute, and it
#: follows a correct step within ten times the length of the step.
CLOCK_GAIN_RATIO: Final = 0.1
#: If a wall clock is ahead by this much, the log says so; the doctor says so of a store's time.
#: Synchronised hosts differ by less.
CLOCK_LEAP_SECONDS: Final = 10.0

# Caches of blocks
#: A block fits in a message of NATS, whose max_payload is 1 MiB by default. Half a block more than
#: what is wanted, on average, is 3 ms of S3.
CACHE_BLOCK_BYTES: Final = 512 * KIB
#: What one request to the bucket brings at most, as without a cache.
CACHE_PIECE_BYTES: Final = 4 * MIB
#: What a server with the role `cache` keeps in memory by default.
CACHE_BYTES: Final = 64 * MIB
#: A compressed snapshot above this is read from the bucket: it would drive all else from a cache.
MAX_NEAR_SNAPSHOT_BYTES: Final = 16 * MIB
#: A block that nobody asked for this long leaves, and any block after the second time.
CACHE_IDLE_SECONDS: Final = 60.0
CACHE_MAX_AGE_SECONDS: Final = 600.0

# The bus
#: Time between two looks at a connection, each of which asks whether anything was received.
BUS_LOOK_SECONDS: Final = 0.8
#: After this many looks without received data, a PING is sent, or the connection
#: is replaced: at most 4.8 s after the last byte. A nats-server has 2.4 s for the
#: PONG and never takes a tenth of that.
BUS_PING_LOOKS: Final = 2
BUS_DEAD_LOOKS: Final = 5
#: How long `close` waits for the system to take what was published;
#: a healthy one needs milliseconds.
BUS_CLOSE_SECONDS: Final = 0.5
#: Clients of its host that a persist server takes frames from directly. Gateways, above all.
MAX_DIRECT_CLIENTS: Final = 64
#: Servers with which a client tries that.
MAX_DIRECT_SERVERS: Final = 1024
#: How long either side waits for the other's first message.
DIRECT_HELLO_SECONDS: Final = 5.0
#: Until a client tries again to reach a server directly. It tries only when it sends something.
DIRECT_RETRY_SECONDS: Final = 0.5
#: The same after the server has refused. NATS takes the frames meanwhile.
DIRECT_REFUSED_SECONDS: Final = 30.0
#: What may wait until the other end takes it: a client that takes less than it asks for is left to
#: NATS. Several frames, and little enough for all clients together.
MAX_PIPE_UNSENT_BYTES: Final = 8 * MIB
#: The subjects of one line that a gateway sends: a nats-server closes the connection of a client
#: whose line is longer than 4 KiB, its default, and a reply subject may be as long as a client
#: made it.
MAX_PORT_SUBJECTS_BYTES: Final = 4000
#: Each subject of a delivery over a leafnode connection, whose lines nats-server does not limit: no
#: client can have a longer inbox unless nats-server's max_control_line is raised.
MAX_DELIVERY_SUBJECT_CHARACTERS: Final = 8 * KIB
#: What may wait to be written to a NATS connection of a gateway, whose publishers never wait. A
#: nats-server that leaves more untaken is stuck, and the connection is replaced.
MAX_PORT_WAITING_BYTES: Final = 64 * MIB
#: From here on, a gateway sends nothing in bulk: a few large messages, a tenth of a second of a
#: fast network.
PORT_BUSY_BYTES: Final = 4 * MIB
#: Barriers of a gateway's leafnode connection that may wait: one for each request that does.
MAX_WAITING_BARRIERS: Final = 65_536
#: Subjects whose interest a gateway keeps, about 150 bytes each. A client has a few.
MAX_INTEREST_SUBJECTS: Final = 1_000_000
#: Queue groups of one inbox that a gateway names in a delivery. A client could join any number, and
#: each makes the line longer.
MAX_QUEUE_GROUPS: Final = 64
#: How long a leafnode connection waits before it is tried again, at first and at most. A refused
#: login waits for the longest, so that a wrong password is not tried all the time.
LEAF_RETRY_SECONDS: Final = 0.1
MAX_LEAF_RETRY_SECONDS: Final = 5.0

# Values and frames
#: NATS's default max_payload is 1 MiB. A frame leaves this much of it for the protocol's headers.
FRAME_RESERVE_BYTES: Final = 4 * KIB
#: A value that travels in one piece. With the largest key and headers, it still fits in one frame.
MAX_VALUE_BYTES: Final = 1000 * 1000
#: Writers compress larger values. Below this, the header of a zstd frame and the
#: mark cost what compression saves.
COMPRESS_ABOVE_BYTES: Final = KIB
#: A larger value is uploaded in chunks of this size. Chunks of 512 KiB were no faster, and a client
#: and a server each hold four of them in flight.
CHUNK_BYTES: Final = 256 * KIB
#: The largest chunk that a server accepts.
MAX_CHUNK_BYTES: Final = 512 * KIB
#: Chunks of one value that may be in flight, in either direction.
CHUNKS_IN_FLIGHT: Final = 4
#: The largest value of all: far below the 4 TiB that a SQLite file of 1 KiB pages can hold.
MAX_LARGE_VALUE_BYTES: Final = 64 * KIB * MIB
#: The id of an upload: as long as a UUID.
UPLOAD_ID_BYTES: Final = 16
#: The digest of a large value.
SHA256_BYTES: Final = 32
#: Unfinished uploads of one store. Each takes the space of its chunks.
MAX_STAGED_UPLOADS: Final = 64
#: An upload without a new chunk for this long is considered abandoned and is removed.
UPLOAD_RETENTION_SECONDS: Final = 3600.0
#: All header names and texts of one message (JetStream: 64 KiB), except those that our clients add.
MAX_HEADERS_BYTES: Final = 16 * KIB
#: The NATS header block of one message: JetStream's own limit.
MAX_HEADER_BLOCK_BYTES: Final = 64 * KIB - 1
#: The subject of a message, and a filter: as long as a subject of NATS need be. Each distinct one
#: is a row of its store.
MAX_MESSAGE_SUBJECT_BYTES: Final = KIB
#: Filters of one operation. Each is compared with every subject that it may match.
MAX_FILTERS: Final = 4096
#: The smallest max_payload of a nats-server that holdfast works with: NATS's default.
MIN_PAYLOAD_BYTES: Final = MIB
#: A subject. The longest of ours has a prefix and a store name of MAX_NAME_BYTES each, a tenant of
#: 63 and some letters.
MAX_SUBJECT_BYTES: Final = KIB
#: A line of the NATS protocol. A nats-server's own limit for clients is 4 KiB, but INFO names all
#: servers of a NATS cluster.
MAX_NATS_LINE_BYTES: Final = MIB
#: Operations in one frame. Bounds the work of one tick per client and the size of a reply.
MAX_FRAME_OPERATIONS: Final = 4096
#: `msg_id`: as long as any UUID or hash needs; it is kept in an index.
MAX_MSG_ID_BYTES: Final = 256
#: Seqs or keys that one delete operation may name.
MAX_DELETE_COUNT: Final = 4096

# What a payload may contain
#: Nesting of arrays and maps. The protocol itself nests at most nine deep (a header of
#: an operation of a batch). A depth of a thousand would exceed Python's recursion limit
#: when such a value is shown or packed.
MAX_NESTING: Final = 16
#: Elements of one array, and of one map, that a server accepts: memory is
#: allocated for as many as are announced.
MAX_ARRAY_LENGTH: Final = 2 * MAX_FRAME_OPERATIONS
#: What an element of an argument (a seq, a key, an ack) may take in
#: memory beside its bytes on the wire.
ELEMENT_BYTES: Final = 64
#: Seqs, revisions, times and counts: SQLite's integers.
MIN_INTEGER: Final = -(1 << 63)
MAX_INTEGER: Final = (1 << 63) - 1
#: Terms of coordinators. Each start of a coordinator takes one, so only a forged term comes near.
MAX_TERM: Final = 1 << 48
#: An error carries at most this many fields, characters of text and elements of a list.
MAX_ERROR_FIELDS: Final = 16
MAX_ERROR_TEXT_CHARACTERS: Final = 512
MAX_ERROR_ELEMENTS: Final = 16

# Consumers
#: Consumers of one stream. Each is a cursor in the owner's memory while the stream is in use.
MAX_CONSUMERS: Final = 64
#: The largest `max_ack_pending` of a consumer. Each pending message
#: is a row, and an element in memory.
MAX_ACK_PENDING: Final = 10_000
#: Messages of one fetch, and acks in one operation: as many as a page has.
MAX_FETCH: Final = 4096
#: The longest `ack_wait_seconds`, and the longest delay of a message that is handed back.
MAX_ACK_WAIT_SECONDS: Final = 30.0 * 86_400

# Cursors
#: Cursors of one stream: its gateway holds each one in memory.
MAX_CURSORS: Final = 4096
#: The name of a cursor: a consumer's of JetStream has at most 255 bytes.
MAX_CURSOR_NAME_BYTES: Final = 256
#: The configuration of a cursor, and its state: a consumer of JetStream may have a thousand filters
#: and 8 KiB of metadata and description.
MAX_CURSOR_CONFIG_BYTES: Final = 160 * KIB
MAX_CURSOR_STATE_BYTES: Final = 160 * KIB
#: Rows of one cursor: deliveries that are pending. JetStream's own `max_ack_pending` is 1,000
#: unless somebody raises it.
MAX_CURSOR_ROWS: Final = 65_536
#: The data of one such row: some numbers.
MAX_CURSOR_ROW_BYTES: Final = KIB
#: All cursors of a stream, in names, configurations, states and rows. Each row counts this much
#: beside its data: what the owner keeps of it in memory once the rows of its cursor change.
MAX_CURSORS_BYTES: Final = 128 * MIB
CURSOR_ROW_BYTES: Final = 64

# Reading
#: One page of `get_all`: large enough to amortise a round trip, small enough not to delay a tick.
PAGE_BYTES: Final = 512 * KIB
PAGE_ROWS: Final = 4096
#: Tenants in one answer of the coordinator: about 60 bytes and one index lookup each.
TENANTS_PAGE_ROWS: Final = 1024

#: How long a slice of reads takes before answers to writes get their turn; a read that has begun is
#: finished. 4,096 reads of one message take this long.
READ_SLICE_SECONDS: Final = 0.02
#: While a server also answers writes, its slices and pages of reads are this much smaller: about a
#: millisecond. Smaller ones would cost the readers more round trips than they save the writers.
HURRIED_READS_PART: Final = 8
#: A server that answered no write for this long reads in whole pages again.
HURRY_SECONDS: Final = 0.1

# Reading ahead
#: Stores of at least this many bytes are read ahead of those who read them from the disk. A smaller
#: one is in memory after a few reads in any case.
PREFETCHED_STORE_BYTES: Final = 4 * MIB
#: How far ahead of a reader at first, and at most: 32 MiB is what a reader of 100 MiB/s reads in a
#: third of a second (S3Stream has the same bounds).
START_WINDOW_BYTES: Final = 512 * KIB
MAX_WINDOW_BYTES: Final = 32 * MIB
#: A window is filled by so much at a time, so that other readers need not wait for all of it.
PREFETCH_STEP_BYTES: Final = 4 * MIB
#: What is fetched ahead on one server and not given back. One tenant alone gets half.
MAX_PREFETCHED_BYTES: Final = 256 * MIB
#: Readers of one store that are told apart, and such stores of one server.
MAX_PREFETCH_READERS: Final = 16
MAX_PREFETCH_STORES: Final = 1024
#: A reader that has not gone on for this long is forgotten.
PREFETCH_IDLE_SECONDS: Final = 30.0
#: What was appended last, and since the store was opened, is taken to be in memory.
RECENT_BYTES: Final = 8 * MIB
#: A read that waits for the disk for longer is answered with `unavailable`, and clients ask again.
PREFETCH_SECONDS: Final = 10.0

# Client
#: Frames that one client may have in flight to one server: one being synced, one being applied, and
#: two on the way. More would only move the queue from the client to the server.
FRAMES_IN_FLIGHT: Final = 4
#: Late frames that wait for nothing but the server's bucket; they do not count as in flight. Enough
#: for an outage of hours, during which each is looked at from time to time.
MAX_STORED_FRAMES: Final = 1024
#: The caller of a write gets an answer or an error within this time.
OPERATION_TIMEOUT_SECONDS: Final = 30.0
#: The longest timeout of a client or a call. A retry must find the outcome of the first try, even
#: if its last frame travelled for long.
MAX_OPERATION_TIMEOUT_SECONDS: Final = 300.0
#: An unanswered frame is sent again after this long. Far above a slow sync, far below the timeout.
FRAME_TIMEOUT_SECONDS: Final = 2.0
#: A server that leaves a frame unanswered for this long is asked whether it is there. A frame that
#: died with its server gets no `no responders`, but the question does.
PING_SECONDS: Final = 0.2
#: Operations that wait in a client before callers must wait for room, and their bytes.
MAX_WAITING_OPERATIONS: Final = 65536
MAX_WAITING_BYTES: Final = 64 * MIB
#: The number that may wait at first, and at least. It grows as answers
#: come, and shrinks when they come late.
FIRST_WAITING_OPERATIONS: Final = 4096
MIN_WAITING_OPERATIONS: Final = 256
#: Undelivered changes that a subscription holds. Beyond it, it drops
#: them and catches up from the owner.
SUBSCRIPTION_BUFFER_CHANGES: Final = 8192
#: Keys that a failed transaction had read, which the next one of that store reads at once; and the
#: number of such stores.
MAX_CONTENDED_KEYS: Final = 1024
MAX_CONTENDED_STORES: Final = 64
#: Writes of a live replica that the owner has not confirmed. Beyond it, a write is refused with
#: `busy`. Applications may set a hundred thousand keys at once: such a write cannot wait, and takes
#: half a KiB beside its value.
MAX_UNSAVED_WRITES: Final = 131_072
MAX_UNSAVED_BYTES: Final = 64 * MIB
#: The same in bytes, for all subscriptions of a client together. Each may use an eighth of it.
SUBSCRIPTION_BUFFER_BYTES: Final = 64 * MIB
#: How often a follower asks for the head of a silent store, at first and at most. Nothing else
#: notices that the *last* broadcast was lost.
FOLLOW_CHECK_SECONDS: Final = 2.0
FOLLOW_CHECK_MAX_SECONDS: Final = 30.0
#: For how long an owner broadcasts the changes of a kv without values too, after somebody asked for
#: that: followers ask again with each check.
META_WATCH_SECONDS: Final = 3 * FOLLOW_CHECK_MAX_SECONDS
#: Heads that a follower asks for in one turn: as many as half a frame takes.
FOLLOW_CHECK_STORES: Final = 2048
#: How often a subscription to a pattern lists the stores, to find new
#: ones whose first changes were lost.
PATTERN_LIST_SECONDS: Final = 30.0
#: With more stores than this, the interval grows in proportion.
PATTERN_LIST_STORES: Final = 10_000
#: Idle stores of a pattern whose heads are asked for each second. A lost broadcast is noticed in
#: the end, and a million idle stores cost the servers next to nothing.
PATTERN_IDLE_CHECKS_PER_SECOND: Final = 16
#: Stores of a pattern that catch up at the same time.
PATTERN_CATCH_UPS: Final = 256

# Heartbeats and failure detection
HEARTBEAT_SECONDS: Final = 0.5
#: Five heartbeats: one lost message or one long garbage collection is not a death.
SILENCE_SECONDS: Final = 2.5
#: How long a suspected server has to answer a probe.
PROBE_TIMEOUT_SECONDS: Final = 0.5
#: A server whose event loop was stuck for longer does not count as alive, even if it
#: sends heartbeats. Far above any one piece of work in the loop, and about as long as
#: clients wait before they give up.
LOOP_STALL_SECONDS: Final = 10.0
CONTROL_TIMEOUT_SECONDS: Final = 2.0
#: Rounds in which a server shows that it reads fresh before it may own anything (`proof.py`). A
#: cache of a second fails the first one; one that misses one change in three passes ten of them in
#: 2 of 100 starts.
PROOF_ROUNDS: Final = 10
#: Between two later rounds of a server that has stores open. Each costs the coordinator a sync.
PROOF_SECONDS: Final = 5.0
#: How long a new owner goes on asking for the seals of dead logs, and reading those again, while
#: its mount shows something older (`seal.py`). GlusterFS does for 1 s.
SEAL_SECONDS: Final = 10.0
#: How long the client of a network file system may answer from its cache: the wait of a new owner
#: if the coordinator, of an earlier version, seals no log. The longest that was measured is 1 s.
NETWORK_CACHE_SECONDS: Final = 1.2

# Persist server
#: Bytes of frames that wait for a tick. Beyond it the answer is `busy`.
MAX_INBOX_BYTES: Final = 64 * MIB
#: What a group counts there beside its bytes on the wire and ELEMENT_BYTES. A
#: frame can have ten thousand groups.
GROUP_BYTES: Final = 128
#: Refusals and answers to pings that wait for a turn of a server, and answers to control messages
#: that wait for the bus. Further ones are dropped, as if lost, and the requests are repeated.
MAX_WAITING_REFUSALS: Final = 16384
#: Answers and reads that wait for a sync. With more of them, a server gathers
#: instead of answering: retries and refusals add nothing to the log, and would wait
#: without bound behind a sync that hangs.
MAX_WAITING_ANSWERS: Final = 65536
#: Bytes of effects that are applied but not synced. Beyond it the
#: server gathers instead of applying.
MAX_UNSYNCED_BYTES: Final = 8 * MIB
#: One segment of the commit log. Segments are removed as a whole.
LOG_SEGMENT_BYTES: Final = 8 * MIB
#: The zeros behind the last small frame of a log on a local file system, which later frames
#: overwrite (`commit_log.py`).
LOG_ZEROS_BYTES: Final = 128 * KIB
#: The whole commit log of a server. It bounds the work of a recovery.
LOG_CAP_BYTES: Final = 64 * MIB
#: A server's log in the bucket. An object is put at most this often (4 puts a second are $52 a
#: month), this soon after an idle spell, or at once when this much waits.
LOG_OBJECT_SECONDS: Final = 0.25
LOG_OBJECT_IDLE_SECONDS: Final = 0.01
#: A budget (`flush_budget.py`) puts them at most this far apart. The answer to a write waits so
#: long and for the put: below FRAME_TIMEOUT_SECONDS, or clients would send each frame again. Puts
#: all day long are then $9 a month.
MAX_LOG_OBJECT_SECONDS: Final = 1.5
#: A budget saves up for bursts as long as this at the mean rate. A budget of half a dollar a day so
#: pays for a quarter of an hour at full pace.
BUDGET_PURSE_SECONDS: Final = 3600.0
#: The bucket may lack changes for this many times longer than asked for, to keep to a budget.
MAX_LAG_STRETCH: Final = 4.0
LOG_OBJECT_BYTES: Final = 4 * MIB
#: Changes that wait for the bucket. Beyond it, a `stored` write is answered with `busy`, and stores
#: whose changes are dropped here start over with a snapshot.
MAX_UNSTORED_BYTES: Final = 64 * MIB
#: `stored` writes that wait for the bucket. Further ones are answered with `busy`.
MAX_UNSTORED_ANSWERS: Final = 65536
#: Objects of a log: about nine minutes of a busy server. Beyond it, the stores that hold the oldest
#: ones are snapshotted, since a recovery reads every object.
MAX_LOG_OBJECTS: Final = 2048
#: A sync of the log that takes longer counts as a hanging disk: the server stops its heartbeats, so
#: that others take over. Disks that are merely busy have taken seconds.
SYNC_STALL_SECONDS: Final = 5.0
#: The same for a log in the bucket, where seconds are an ordinary delay.
PUT_STALL_SECONDS: Final = 20.0
#: Changes of one kv, or of a stream that keeps few messages of each subject, that wait in memory
#: for their SQLite transaction. If a key is set several times before it, only the last value is
#: written.
MAX_PENDING_CHANGES: Final = 4096
#: The same for another stream, where waiting longer saves nothing.
MAX_PENDING_MESSAGES: Final = 1024
MAX_PENDING_BYTES: Final = MIB
#: Of a store of the first kind, if at most APPLY_WHOLE_MESSAGES messages or keys last: however much
#: comes and goes between them, so many rows are written, in some 5 ms. What is not written takes
#: 0.6 µs. Each tick takes as much as TICK_CHANGES beside its changes, and each change that sets
#: nothing has a row in the log of changes, which takes as much as LOGGED_CHANGES.
MAX_GATHERED_CHANGES: Final = 16 * KIB
MAX_GATHERED_BYTES: Final = 3 * MIB
TICK_CHANGES: Final = 2
LOGGED_CHANGES: Final = 8
#: Of this many times as many bytes in large changes, a quarter is applied with each tick: chunks
#: gather while their file is checkpointed, and a MiB of them takes 1.3 ms.
PENDING_EXCESS: Final = 4
#: Of this many times as much, the slices below follow each other turn by turn, since they have not
#: kept up. A fast writer adds twenty times as much during a checkpoint of its file, which they
#: catch up with in a quarter of a second. The cap of the log bounds it in any case.
LADEN_EXCESS: Final = 64
#: Changes of a stream that the loop applies to its file at once, in about a millisecond; twice as
#: many would save 2 % of the work. Those of a kv are applied together, since only the last one of
#: each key is written, and so are those of a stream that keeps few messages of each subject, if at
#: most APPLY_WHOLE_MESSAGES of them last.
APPLY_SLICE_CHANGES: Final = 512
APPLY_WHOLE_MESSAGES: Final = 1536
APPLY_SLICE_BYTES: Final = 256 * KIB
#: Chunks of one store that wait in memory while its file is checkpointed. Further ones wait in the
#: inbox. A checkpoint of WAL_CAP_BYTES took 65 ms, in which 14 MiB came.
MAX_PENDING_CHUNK_BYTES: Final = 12 * MIB
#: A longer WAL is checkpointed whatever the log says. Overwrites all over a large kv change a page
#: or two each, so its WAL can grow by twenty bytes for each byte of the log. And chunks of large
#: values can fill one several times while the log waits for its next pass.
WAL_CAP_BYTES: Final = 16 * MIB
#: Chunks of deleted values that one checkpoint removes from a file: 256 MiB, about 0.2 s.
MAX_SWEPT_CHUNKS: Final = 1024
#: Store files that a server keeps open, if memory and descriptors allow
#: (`persist/lifecycle/capacity.py`). Beyond it, each use of another store costs a close and an
#: open, so it is far above the number in use at a time.
MAX_OPEN_STORES: Final = 20_000
#: Files of open stores that keep their connection of SQLite though nobody uses them, at some 110 kB
#: each. Of others, the next read and the next change to their file take 0.4 ms more.
MAX_AWAKE_FILES: Final = 2048
#: A store that is unused for this long is checkpointed and closed. Closing a new
#: store and opening it again costs about 8 ms and two syncs, so a client that returns
#: within a minute should find it open.
IDLE_CLOSE_SECONDS: Final = 60.0
#: The content of one ephemeral store, as `Head.bytes` counts it: also the default of its
#: `max_bytes`. And the memory of all ephemeral stores of one server, with all that SQLite adds.
MAX_EPHEMERAL_STORE_BYTES: Final = 64 * MIB
MAX_EPHEMERAL_BYTES: Final = 256 * MIB
#: Images of cold stores that are read in memory: one, and all
#: together. Larger stores get a file again.
MAX_COLD_READ_BYTES: Final = 256 * KIB
MAX_COLD_MEMORY_BYTES: Final = 64 * MIB
#: A read of the archive that takes longer is answered with `unavailable`, and clients ask again.
ARCHIVE_READ_SECONDS: Final = 20.0
#: What is fetched of the archive before somebody asks, on one server. One tenant alone gets half:
#: the largest window of one reader (MAX_WINDOW_BYTES).
MAX_ARCHIVE_AHEAD_BYTES: Final = 64 * MIB
#: How long a server with the role `archive` has for an answer. A row group of 64 MiB takes a
#: second or two from S3. Two are asked at most, and the owner still has time to read itself.
ARCHIVE_ASK_SECONDS: Final = 5.0
#: How often open stores are checked for messages that may move to the archive.
ARCHIVE_LOOK_SECONDS: Final = 60.0
#: Changes that a blocking client takes from the loop's thread at once: enough that switching
#: threads costs little per change.
TAKEN_OVER_CHANGES: Final = 512
TAKEN_OVER_BYTES: Final = 1024 * 1024
#: Calls that threads posted to the loop of the blocking clients without waiting for them. Beyond it
#: the threads wait; otherwise a producer could run ahead of the loop without bound.
MAX_POSTED_CALLS: Final = 4096
#: How long the outcome of a write is kept for its retry. Far above MAX_OPERATION_TIMEOUT_SECONDS.
OUTCOME_RETENTION_SECONDS: Final = 600.0
#: Groups of one writer and store whose outcomes are kept, counted from the first that the writer
#: waits for. A client sends no more, and a server answers `busy`. A writer whose first group waits
#: for the bucket may have this many beside it; a frame seldom has more than one group of a store.
MAX_WRITER_OUTCOMES: Final = 4096
#: The same in bytes of outcomes, most of which have 20; and those of all writers of a store. Above
#: the latter, only writers that wait for nothing else are served.
MAX_WRITER_OUTCOME_BYTES: Final = 4 * MIB
MAX_OUTCOME_BYTES: Final = 64 * MIB
#: Writers of one store whose last outcomes are kept, each for OUTCOME_RETENTION_SECONDS. Beyond it,
#: new writers get `busy`, and no known writer is forgotten for them. Each client is one; a shell
#: script that appends fifty times a second makes 30,000.
MAX_WRITERS: Final = 65536
#: How long a `msg_id` is remembered (JetStream's default duplicate window).
DEDUPE_WINDOW_SECONDS: Final = 120.0
#: The longest `dedupe_window_seconds` of a store: every msg_id of a window is a row.
MAX_DEDUPE_WINDOW_SECONDS: Final = 86_400.0
#: The msg_ids that a store remembers, each about a hundred bytes of its file: 35,000 a second for
#: the default window. At the limit, new ones are refused; old ones are never forgotten early.
MAX_MSG_IDS: Final = 4 * MIB
#: The longest ttl and max_age_seconds: a hundred years, so that times fit in 64 bits.
MAX_RETENTION_SECONDS: Final = 100.0 * 366 * 86_400
#: The description of a store. It is in the one row that every transaction writes.
MAX_DESCRIPTION_BYTES: Final = 512
#: The values of a key that a kv can be told to keep, as many as JetStream's: the owner looks at the
#: sizes of all of them when the key is set.
MAX_HISTORY: Final = 64
#: Stores that one server destroys at a time for applications: for all tenants, and for one
#: of them. Each one holds its store and takes some syncs and a thread. Operators' jobs
#: have the same limit of their own.
MAX_DESTROYING: Final = 32
MAX_DESTROYING_OF_TENANT: Final = 4
#: Stores of which a server looks for what is void in one sweep, which reads all logs and lists the
#: tenant's snapshots. Their names, of up to MAX_NAME_BYTES, fit in a message of NATS.
MAX_SWEPT_STORES: Final = 1024
#: Messages that the loop removes from a file at once, in about 40 ms. If there are more, a thread
#: removes them, this many in each transaction.
MAX_TRIMMED_ROWS: Final = 16_384
MAX_TRIMMED_BYTES: Final = 16 * MIB
#: Messages or keys that one turn of the loop removes from a store for
#: its limits. The next turn continues.
MAX_EVICTED_ROWS: Final = 4 * MAX_DELETE_COUNT
#: Messages or keys that one turn removes because they have expired: a millisecond, or three if each
#: has to be looked at. Whoever needs that store waits for more turns, and nobody else does.
MAX_EXPIRED_ROWS: Final = MAX_DELETE_COUNT
#: Messages that one PURGE removes: as many as one turn removes for limits.
MAX_PURGED_MESSAGES: Final = MAX_EVICTED_ROWS
#: Keys that one DELETE_PREFIX removes: as many as one turn removes for limits.
MAX_DELETED_WITH_PREFIX: Final = MAX_EVICTED_ROWS
#: Keys with a prefix that a client has deleted at a time, if they need not go at once: about two
#: milliseconds of their owner.
DELETED_WITH_PREFIX_AT_A_TIME: Final = 1024
#: Subjects and messages that one turn looks through for filters, in about 0.1 s, and keys for
#: prefixes.
MAX_LOOKS: Final = 65_536
#: Messages that one append with `rollup` removes.
MAX_ROLLED_UP_MESSAGES: Final = 4 * MAX_EVICTED_ROWS
#: Digits of a counter (`incr`): JetStream has no limit, but time and space.
MAX_COUNTER_DIGITS: Final = 1000
#: How often a server tells the coordinator, for listings, what an open store holds that changes.
TOTALS_SECONDS: Final = 60.0
#: How often it looks for such stores: five milliseconds for 10,000, with pauses.
TOTALS_LOOK_SECONDS: Final = 5.0
#: How often open stores are checked for expired messages and keys. Reads do not wait for that.
EXPIRY_CHECK_SECONDS: Final = 1.0
#: Deletes and trims that a store remembers for disconnected
#: followers. Beyond it, they get a `reset`.
MAX_CHANGE_LOG_ROWS: Final = 10_000

# Statistics
#: What one part tells of itself: about a hundred numbers and a dozen histograms. It travels in
#: every second heartbeat, so the coordinator decodes it once a second for each server.
MAX_REPORT_BYTES: Final = 4 * KIB
MAX_REPORT_SAMPLES: Final = 512
#: The labels of one number, as text.
MAX_LABELS_CHARACTERS: Final = 256
#: Values of one label; further ones are counted together.
MAX_LABEL_VALUES: Final = 48
#: Gateways tell this often.
REPORT_SECONDS: Final = 2.0
#: A part that was silent for so long is not told of any more.
REPORT_FORGOTTEN_SECONDS: Final = 60.0
#: Parts that a coordinator remembers, and gateways of one tenant among them: 4 MiB in all.
MAX_PARTS: Final = 1024
MAX_PARTS_OF_TENANT: Final = 64

assert MAX_PARTS_OF_TENANT * MAX_REPORT_BYTES < PAGE_BYTES
assert MAX_KEY_BYTES + MAX_VALUE_BYTES + MAX_HEADERS_BYTES + MAX_MSG_ID_BYTES + 512 < (
    MIN_PAYLOAD_BYTES - FRAME_RESERVE_BYTES
)
assert MAX_HEADER_BLOCK_BYTES < MAX_VALUE_BYTES
assert 2 * MAX_CURSOR_CONFIG_BYTES < PAGE_BYTES
assert PAGE_BYTES <= MIN_PAYLOAD_BYTES // 2
assert MIN_PAYLOAD_BYTES <= PORT_BUSY_BYTES <= MAX_PORT_WAITING_BYTES // 8
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
assert PREFETCH_SECONDS < OPERATION_TIMEOUT_SECONDS
assert PAGE_BYTES <= START_WINDOW_BYTES <= PREFETCH_STEP_BYTES <= MAX_WINDOW_BYTES
assert 4 * MAX_WINDOW_BYTES <= MAX_PREFETCHED_BYTES
assert 2 * MAX_WINDOW_BYTES <= MAX_ARCHIVE_AHEAD_BYTES
assert 2 * ARCHIVE_ASK_SECONDS <= ARCHIVE_READ_SECONDS / 2
assert SYNC_STALL_SECONDS < PUT_STALL_SECONDS < OPERATION_TIMEOUT_SECONDS
assert LOG_SEGMENT_BYTES * 4 <= LOG_CAP_BYTES
assert MAX_EPHEMERAL_STORE_BYTES * 4 <= MAX_EPHEMERAL_BYTES
assert LOG_OBJECT_IDLE_SECONDS < LOG_OBJECT_SECONDS < MAX_LOG_OBJECT_SECONDS
assert MAX_LOG_OBJECT_SECONDS < FRAME_TIMEOUT_SECONDS
assert LOG_OBJECT_BYTES <= MAX_UNSYNCED_BYTES // 2
assert MAX_UNSYNCED_BYTES < LOG_CAP_BYTES

#: The object with the ids of all revoked tokens: a hundred thousand of them.
MAX_REVOKED_BYTES: Final = 8 * MIB

# Grants: what servers know of tokens
#: How often servers look whether tokens were revoked, while requests come in.
REVOCATIONS_SECONDS: Final = 2.0
#: A server that has not read the revocations for so long refuses: a revoked token is refused
#: everywhere within this time.
REVOCATIONS_FRESH_SECONDS: Final = 5.0
#: A grant is loaded and verified again after this time, so that a removed issuer counts.
GRANT_SECONDS: Final = 300.0
#: An id that is no valid token is not looked up again for this time. Short, because a token may be
#: registered a moment after its first use elsewhere.
UNKNOWN_GRANT_SECONDS: Final = 1.0
#: Grants that a server knows, a kilobyte or two each; the oldest is loaded again when it is needed.
MAX_KNOWN_GRANTS: Final = 16_384
#: Ids known to be no valid tokens.
MAX_UNKNOWN_GRANTS: Final = 4096
#: Pairs of a grant and a store whose rights are known, for all grants.
MAX_KNOWN_RIGHTS: Final = 65_536
#: Tokens that one server loads at the same time, each in a thread.
MAX_GRANT_LOADS: Final = 4
#: Frames that wait for their grant: in all, and what each one counts besides its payload. No more
#: than 8,192 wait.
MAX_GRANT_WAITING_BYTES: Final = 16 * MIB
GRANT_WAITING_BYTES: Final = 2 * KIB
#: How long a frame waits for its grant. Less than clients wait before they send it again.
GRANT_WAIT_SECONDS: Final = 1.5

# The audit log
#: One text of an event, such as a reason, in characters, and one event as JSON.
MAX_AUDIT_TEXT: Final = 256
MAX_AUDIT_EVENT_BYTES: Final = 8 * KIB
#: How long the audit log keeps events unless an operator configures it, and its size in all: the
#: oldest go first.
AUDIT_KEEP_SECONDS: Final = 400.0 * 86_400
MAX_AUDIT_BYTES: Final = 1024 * MIB

# Moving stores by load
#: So many bytes weigh as much as a lone operation: a server executes and logs a KiB in the time of
#: an operation within a group, and a group takes as long as two dozen of those (`turn.py`).
LOAD_BYTES: Final = 16 * KIB
#: So many open stores weigh as much as an operation a second. They take memory, and no time until
#: somebody uses them.
LOAD_OPEN_STORES: Final = 10
#: Over this time, or the time since the last half of it began, a server counts what its stores are
#: asked for. Short, so that a move shows soon; and long enough for a store with ten operations a
#: second to be counted within a tenth.
LOAD_WINDOW_SECONDS: Final = 10.0
#: Stores that a server counts in half of that time. A store that is asked for often is among the
#: first.
MAX_COUNTED_STORES: Final = 16_384
#: The busiest stores of one answer, and the bytes that they take in it.
MAX_HOT_STORES: Final = 512
MAX_HOT_BYTES: Final = 64 * KIB
#: Stores that wait on one server to be handed over.
MAX_MOVING_STORES: Final = 1024
#: How long a store that is in use by a job, or cannot be made durable, is tried.
MOVE_PATIENCE_SECONDS: Final = 10.0

# Grants told before they are asked for
#: Stores of which one transaction of the coordinator tells their owners. More than so many are not
#: opened alone, so that a question for each few hundred costs next to nothing.
MAX_TOLD_GRANTS: Final = 64
#: Such grants that a server keeps: 0.5 MiB with the longest names.
MAX_EARLY_GRANTS: Final = 1024
#: How long: the first frame of the client that was told of the owner needs some milliseconds.
EARLY_GRANT_SECONDS: Final = 5.0

# What a JetStream gateway holds for its clients
#: Messages whose appends are unanswered, of all streams: JetStream's own bounds are 10,000 and 128
#: MiB for each stream. Further publishers get 429.
MAX_UNANSWERED_PUBLISHES: Final = 65_536
MAX_UNANSWERED_PUBLISH_BYTES: Final = 128 * MIB
#: Messages of one stream behind one that is uploaded in chunks.
MAX_HELD_PUBLISHES: Final = 1024
#: Open atomic batches of one stream, as in nats-server, and their bytes, which are in memory here.
MAX_OPEN_BATCHES: Final = 50
MAX_STAGED_BATCH_BYTES: Final = 32 * MIB
#: What all streams hold for later: of atomic batches, behind what is uploaded, and what waits to be
#: republished.
MAX_STAGED_PUBLISH_BYTES: Final = 128 * MIB
#: Open fast batches of one stream, and of all streams of a gateway, as in nats-server. Their
#: messages count among the unanswered ones.
MAX_FAST_BATCHES: Final = 1000
MAX_FAST_BATCHES_TOTAL: Final = 50_000
#: Of one stream: subjects whose last seq is remembered for what is republished, messages that wait
#: for that of a subject, and messages that wait for what was stored before them.
MAX_REPUBLISHED_SUBJECTS: Final = 16_384
MAX_WAITING_REPUBLISHED: Final = 4096
#: Requests of the API that one gateway answers at a time, and direct gets of one stream: each has a
#: task. More are told to try again.
MAX_API_REQUESTS: Final = 1024
MAX_DIRECT_GETS: Final = 1024
#: Changes of the catalogue in one transaction: entries of usual size fit in a frame.
MAX_CATALOGUE_CHANGES: Final = 256
#: Gateways of a tenant that one of them knows; whoever claims to be one more is ignored.
MAX_GATEWAYS: Final = 256

assert 2 * REVOCATIONS_SECONDS < REVOCATIONS_FRESH_SECONDS < GRANT_SECONDS
assert GRANT_WAIT_SECONDS < FRAME_TIMEOUT_SECONDS
assert MIN_PAYLOAD_BYTES * 4 < MAX_GRANT_WAITING_BYTES
assert MAX_STAGED_BATCH_BYTES < MAX_STAGED_PUBLISH_BYTES <= MAX_UNANSWERED_PUBLISH_BYTES
assert MAX_CATALOGUE_CHANGES < MAX_FRAME_OPERATIONS
assert MAX_HOT_STORES <= MAX_MOVING_STORES <= MAX_FRAME_OPERATIONS
assert MAX_TOLD_GRANTS < MAX_EARLY_GRANTS
assert MAX_HOT_BYTES < MIN_PAYLOAD_BYTES
assert MAX_HOT_STORES < MAX_COUNTED_STORES
