"""How a server is configured: what its operator chooses, and what its machine provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.persist.shared_disk.fence_watch import Watch, watch_folder
from holdfast.persist.threads.loop_watch import LoopWatch
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.limits import (
    CACHE_BYTES,
    IDLE_CLOSE_SECONDS,
    MAX_AWAKE_FILES,
    MAX_OPEN_STORES,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.monitoring.counting import Statistics
from holdfast.protocol.monitoring.prices import S3_PRICES, Prices
from holdfast.protocol.serving.grant_desk import TokenSource
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.roles import ALL_ROLES, Roles
from holdfast.protocol.work.zones import NOWHERE
from holdfast.shared_fs.access.quotas import ReadsQuotas
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.shared_fs.read_ahead.host_cache import HostCache, host_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What an operator chooses."""

    subjects: Subjects = field(default_factory=Subjects)
    durability: Durability = Durability.SYNCED
    idle_close_seconds: float = IDLE_CLOSE_SECONDS
    max_open_stores: int = MAX_OPEN_STORES
    #: How many files of open stores keep a connection of SQLite though nobody uses them.
    max_awake_files: int = MAX_AWAKE_FILES
    tier_policy: TierPolicy = field(default_factory=TierPolicy)
    #: The disk is this server's own and only a cache: log, fence and data are in the bucket.
    bucket_only: bool = False
    #: Where tokens are read. None: the server is open, it asks nobody for one.
    tokens: TokenSource | None = None
    #: Where the limits of tenants are read. None: no tenant has a quota.
    quotas: ReadsQuotas | None = None
    #: Where the data keys of encrypted tenants are read. None: no tenant is encrypted.
    keys: ReadsKeys | None = None
    #: The master keys, by id, that wrap those.
    master_keys: Mapping[str, MasterKey] = field(default_factory=dict)
    #: What its bucket costs.
    prices: Prices = S3_PRICES
    #: What it may cost a day, at these prices. None: there is no budget.
    budget_per_day: float | None = None
    #: Whether it tells the audit log what operators and tokens do.
    audits: bool = False
    #: What the server is there for.
    roles: Roles = ALL_ROLES
    #: What it keeps in memory for others, if it has the role `cache`.
    cache_bytes: int = CACHE_BYTES
    #: Where it runs: a name that clients and servers of one place share.
    zone: str = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a server uses of the machine that it runs on. A simulation provides its own."""

    #: Returns int milliseconds since the epoch. None: a steady clock.
    clock_ms: Callable[[], int] | None = None
    #: Runs blocking functions. None: pools of threads, one for each purpose.
    run_in_thread: RunInThread | None = None
    watch: Watch = watch_folder
    loop_watch: LoopWatch | None = None
    #: What the process counts, over all of its lives. None: each life by itself.
    statistics: Statistics | None = None
    #: The memory of this host for files. None: nothing is known of it.
    host_cache: HostCache | None = field(default_factory=host_cache)
