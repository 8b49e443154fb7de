"""`holdfast nats-config`: write the configuration of one's own nats-server."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.access.new_file import new_file
from holdfast.cli.access.registry_options import (
    KEYS_OPTION,
    AccessPlace,
    needed_access_packages,
    registry_options,
)
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.protocol.subjects import Inboxes


@click.command(name="nats-config")
@click.option(
    "--callout/--static",
    default=True,
    help="Ask the auth service about tokens (the default), or name each token.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this new file, which only you can read, instead of stdout.",
)
@registry_options
@KEYS_OPTION
@shared_options("prefix", "inbox-prefix")
@pass_settings
def nats_config(
    settings: Settings,
    callout: bool,
    out: Path | None,
    data: Path | None,
    bucket: str | None,
    keys: Path | None,
) -> None:
    """Write a configuration for nats-server that holds everybody to their rights.

    It explains each line. With --static it contains the tokens that are valid now. Write it anew,
    and reload nats-server, after each change of tokens.
    """
    place = AccessPlace(data, bucket, keys)
    place.check()
    inboxes = Inboxes.of_cluster(settings.inbox_prefix, settings.prefix).root
    with needed_access_packages():
        from holdfast.gateway.auth.nats_configuration import (
            callout_configuration,
            static_configuration,
        )
        from holdfast.shared_fs.access.registry import valid_tokens

        public_keys = place.open_keys().public_keys()
    if callout:
        text = callout_configuration(public_keys, settings.prefix, inboxes)
    else:
        with place.opened_registry() as registry:
            tokens = list(valid_tokens(registry, time.time()))
        text = static_configuration(public_keys, settings.prefix, tokens, inboxes)
    with new_file(out) as file:
        click.echo(text, nl=False, file=file)
