"""Bodies of requests about consumers, each into a frozen value. All raise ApiError.

Pull requests are in `pull_requests`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from holdfast.gateway.jetstream.api import bodies, errors
from holdfast.gateway.jetstream.api.checks.consumer_checks import is_group_name
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.requests.stream_requests import offset
from holdfast.gateway.jetstream.api.requests.verbs import ApiCall, ApiVerb
from holdfast.gateway.jetstream.api.times import ZERO_TIME_NS


class ConsumerAction(StrEnum):
    """What may happen: `create` refuses another configuration, `update` needs the consumer."""

    CREATE_OR_UPDATE = ""
    CREATE = "create"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class CreateConsumer:
    """CONSUMER.CREATE and CONSUMER.DURABLE.CREATE: a configuration as it came, not checked yet.

    Its name is that of the subject. It is empty if the gateway is to make one.
    """

    config: ApiConsumerConfig
    action: ConsumerAction = ConsumerAction.CREATE_OR_UPDATE
    pedantic: bool = False

    @property
    def name(self) -> str:
        return self.config.durable_name or self.config.name

    @classmethod
    def parse(cls, call: ApiCall, body: bytes) -> CreateConsumer:
        """The subject says the stream, and mostly the name and the filter, which must agree."""
        fields = bodies.read(_CREATE, bodies.parse_object(body))
        if call.stream != fields.pop("stream_name", ""):
            raise errors.stream_name_mismatch()
        config: ApiConsumerConfig = fields.get("config", ApiConsumerConfig())
        name = call.consumer or config.name
        if "/" in name or "\\" in name:
            raise errors.consumer_name_separators()
        if call.verb is ApiVerb.CONSUMER_DURABLE_CREATE and not config.durable_name:
            raise errors.consumer_durable_not_set()
        if call.consumer:
            if config.durable_name and config.durable_name != call.consumer:
                raise errors.consumer_durable_mismatch()
            config = replace(config, name=call.consumer)
        elif config.durable_name:
            raise errors.consumer_ephemeral_with_durable()
        if call.subject:
            if config.filter_subjects:
                raise errors.consumer_several_filters_in_subject()
            if config.filter_subject != call.subject:
                raise errors.consumer_filter_mismatch()
        fields["config"] = config
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class ListConsumers:
    """CONSUMER.NAMES and CONSUMER.LIST."""

    offset: int = 0

    @classmethod
    def parse(cls, body: bytes) -> ListConsumers:
        if not bodies.is_object(body):
            return cls()
        return cls(**bodies.read({"offset": offset}, bodies.parse(body)))


@dataclass(frozen=True, slots=True)
class PauseConsumer:
    """CONSUMER.PAUSE; None resumes."""

    #: In nanoseconds since 1970.
    pause_until: int | None = None

    @classmethod
    def parse(cls, body: bytes) -> PauseConsumer:
        if not bodies.is_object(body):
            return cls()
        until = bodies.read({"pause_until": bodies.time}, bodies.parse(body)).get("pause_until")
        return cls(None if until == ZERO_TIME_NS else until)


@dataclass(frozen=True, slots=True)
class UnpinConsumer:
    """CONSUMER.UNPIN."""

    group: str

    @classmethod
    def parse(cls, body: bytes) -> UnpinConsumer:
        fields = bodies.read({"group": bodies.text}, bodies.parse(body), strict=False)
        group = fields.get("group", "")
        if not group:
            raise errors.invalid_json("consumer group not specified")
        if not is_group_name(group):
            raise errors.consumer_group_name_invalid()
        return cls(group)

    def check(self, config: ApiConsumerConfig) -> None:
        """Check that the consumer has the group."""
        if self.group not in config.priority_groups:
            raise errors.consumer_priority_group_unknown()


@dataclass(frozen=True, slots=True)
class ResetConsumer:
    """CONSUMER.RESET; 0 is back to the ack floor."""

    seq: int = 0

    @classmethod
    def parse(cls, body: bytes) -> ResetConsumer:
        fields = bodies.parse_object(body)
        return cls(**bodies.read({"seq": bodies.uint64}, fields, strict=False))


_CREATE: Final[bodies.Schema] = {
    "stream_name": bodies.text,
    "config": ApiConsumerConfig.parse,
    "action": bodies.word(ConsumerAction),
    "pedantic": bodies.boolean,
}
