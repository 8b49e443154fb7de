"""How a process proves to NATS who it is, and how it checks whom it talks to.

Every part takes these settings by the same names: options of its command line (`LOGIN_OPTIONS`),
variables of its environment, arguments of `connect`. All of them are paths of files, so no secret
is in a command line. User and password are part of the URL (`nats_url.py`).

Files are read anew for each connection, so a renewed certificate or credentials file takes effect
without a restart. As ssh does, a process refuses a secret file of its own user that others may
read; it does not judge files of another user, such as those that a supervisor mounts for it.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import nats.errors

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import InvalidArgumentError

#: Options of nats-py's `connect` that callers may pass beside those of this module.
NATS_OPTIONS: Final = frozenset(
    {
        *("connect_timeout", "dont_randomize", "nkeys_seed_str", "password", "signature_cb"),
        *("tls_handshake_first", "tls_hostname", "token", "user", "user_jwt_cb"),
        "ws_connection_headers",
    }
)
_RECONNECTS: Final = (
    "a lost connection is retried for ever; `connected`, `on_disconnect` and `on_reconnect` of a"
    " client tell its state"
)
#: Why other options are refused, or what to use instead.
_INSTEAD: Final = {
    "servers": "give several servers in the URL, joined by commas",
    "user_credentials": "use credentials, the path of a credentials file",
    "nkeys_seed": "use nkey, the path of a file with a seed",
    **dict.fromkeys(
        ("allow_reconnect", "max_reconnect_attempts", "reconnect_time_wait"), _RECONNECTS
    ),
    **dict.fromkeys(("closed_cb", "disconnected_cb", "error_cb", "reconnected_cb"), _RECONNECTS),
    "max_outstanding_pings": "a silent connection is always replaced within 5 s",
    "ping_interval": "a silent connection is always replaced within 5 s",
    "timeout": "use timeout_seconds for operations and connect_timeout for connecting",
}

#: The options of a command line, with their help. A variable `HOLDFAST_NATS_CREDS` and so on sets
#: the same.
LOGIN_OPTIONS: Final = {
    "nats-creds": "a NATS credentials file (.creds)",
    "nats-nkey": "a file with the seed of an nkey",
    "tls-ca": "certificates of the CAs that may sign for NATS (PEM); sets TLS as required",
    "tls-cert": "the client certificate (PEM)",
    "tls-key": "its private key (PEM), if --tls-cert does not contain it",
}
#: Those that say nothing of who this is, except by a client certificate.
TLS_OPTIONS: Final = ("tls-ca", "tls-cert", "tls-key")

#: The path of a file.
StrPath = str | os.PathLike[str]
P = ParamSpec("P")
T = TypeVar("T")

_JWT: Final = re.compile(rb"BEGIN NATS USER JWT-+\s+([\w.-]+)\s")
_SEED: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s+(S[A-Z2-7]+)\s")
_BARE_SEED: Final = re.compile(rb"\s*S[A-Z2-7]+\s*")
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Require TLS, and use these PEM files for it.

    `ca` has the certificates of the CAs that may sign for NATS; without it, the CAs of this machine
    count. `cert` is the client certificate, for a NATS that asks for one, and `key` its private
    key, if that is not in the same file.
    """

    ca: StrPath | None = None
    cert: StrPath | None = None
    key: StrPath | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise InvalidArgumentError(argument="tls", reason="a key needs its certificate")

    @classmethod
    def of(cls, ca: StrPath | None, cert: StrPath | None, key: StrPath | None) -> TlsFiles | None:
        """Return None if no file is given."""
        return cls(ca=ca, cert=cert, key=key) if ca or cert or key else None

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises InvalidArgumentError."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise _unusable("tls", self.ca, "certificates of CAs in PEM", error) from error
        if self.cert is not None:
            check_private("tls", self.cert if self.key is None else self.key)
            try:
                context.load_cert_chain(self.cert, self.key, _no_passphrase)
            except OSError as error:
                files = self.cert if self.key is None else f"{self.cert} and {self.key}"
                what = "a certificate and its key in PEM, without a passphrase"
                raise _unusable("tls", files, what, error) from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLogin:
    """The identity of a process, and what it expects of NATS.

    `credentials` is a credentials file (`.creds`), `nkey` a file with the seed of an nkey. With
    `tls`, the connection is refused unless it is encrypted. `options` are those of nats-py that
    NATS_OPTIONS lists. Raises InvalidArgumentError.
    """

    credentials: StrPath | None = None
    nkey: StrPath | None = None
    tls: TlsFiles | ssl.SSLContext | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_options(self.options)
        if self.tls is not None and not isinstance(self.tls, TlsFiles | ssl.SSLContext):
            raise InvalidArgumentError(argument="tls", reason="must be TlsFiles or an SSLContext")
        if self.credentials is not None and self.nkey is not None:
            reason = "an nkey is given as well: give one of the two"
            raise InvalidArgumentError(argument="credentials", reason=reason)
        for name, value in (
            ("credentials", self.credentials),
            ("nkey", self.nkey),
            ("nkeys_seed_str", self.options.get("nkeys_seed_str")),
        ):
            if value is not None and importlib.util.find_spec("nkeys") is None:
                reason = f"it needs the package nkeys: {how_to_install('auth')}"
                raise InvalidArgumentError(argument=name, reason=reason)

    @classmethod
    def from_options(cls, values: Mapping[str, StrPath | None]) -> NatsLogin:
        """Return what the options of a command line say, by their names with underscores."""
        return cls(
            credentials=values.get("nats_creds"),
            nkey=values.get("nats_nkey"),
            tls=TlsFiles.of(*(values.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))),
        )

    def to_options(self) -> dict[str, str]:
        """Return the options of a command line, without dashes in front, with absolute paths."""
        tls = self.tls if isinstance(self.tls, TlsFiles) else TlsFiles()
        values = (self.credentials, self.nkey, tls.ca, tls.cert, tls.key)
        return {
            name: str(Path(value).resolve())
            for name, value in zip(LOGIN_OPTIONS, values, strict=True)
            if value is not None
        }

    def connect_arguments(self) -> dict[str, Any]:
        """Return the arguments of the client's `connect` that say the same."""
        of_files = {"credentials": self.credentials, "nkey": self.nkey, "tls": self.tls}
        return {**of_files, **self.options}

    def tls_context(self) -> ssl.SSLContext | None:
        """Read the files of TLS. Raises InvalidArgumentError."""
        return self.tls.context() if isinstance(self.tls, TlsFiles) else self.tls

    def nats_options(self) -> dict[str, Any]:
        """Return the options of nats-py's `connect` that prove the identity. Reads the files, so
        that mistakes show at once. Raises InvalidArgumentError."""
        options = dict(self.options)
        if self.credentials is not None:
            options |= _signing(self.credentials)
        elif self.nkey is not None:
            _read_seed(self.nkey)
            options["nkeys_seed"] = os.fspath(self.nkey)
        return options

    def proof(self, nonce: str) -> dict[str, str]:
        """Return the fields of a CONNECT that prove the identity of the files to a server that sent
        `nonce`. Reads the files. Raises InvalidArgumentError."""
        if self.credentials is not None:
            jwt, seed = _read_credentials(self.credentials)
            return {"jwt": jwt.decode(), "sig": _raw_url(_sign(seed, nonce))}
        if self.nkey is not None:
            seed = _read_seed(self.nkey)
            return {"nkey": _public_key(seed), "sig": _raw_url(_sign(seed, nonce))}
        return {}


def variable(option: str) -> str:
    """Return the variable of the environment that sets an option of a command line."""
    return f"HOLDFAST_{option.upper().replace('-', '_')}"


def check_private(argument: str, path: StrPath) -> None:
    """Raise InvalidArgumentError if the secret in `path` cannot be read, or can be read by others.

    The rule is that of ssh for private keys: only files of this user are judged.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise _unusable(argument, path, "a file", error) from error
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and mode & _OF_OTHERS:
        reason = f"other users may open {path} (mode {mode:04o}). Try: chmod 600 {path}"
        raise InvalidArgumentError(argument=argument, reason=reason)


def _signing(path: StrPath) -> dict[str, Callable[..., bytes]]:
    """Return callbacks that read a credentials file, once for each connection.

    nats-py's own reader of such files never returns from one without a JWT, for example while the
    file is being replaced.
    """

    def jwt() -> bytes:
        return _read_credentials(path)[0]

    def signature(nonce: str) -> bytes:
        return _sign(_read_credentials(path)[1], nonce)

    signature("")
    return {"user_jwt_cb": retried(jwt), "signature_cb": retried(signature)}


def _read_credentials(path: StrPath) -> tuple[bytes, bytes]:
    """Return JWT and seed."""
    content = _read_secret("credentials", path)
    jwt, seed = _JWT.search(content), _SEED.search(content)
    if jwt is None or seed is None:
        reason = f"{path} is not a NATS credentials file: it needs a user JWT and an nkey seed"
        raise InvalidArgumentError(argument="credentials", reason=reason)
    return jwt[1], seed[1]


def _read_seed(path: StrPath) -> bytes:
    content = _read_secret("nkey", path)
    if not _BARE_SEED.fullmatch(content):
        reason = f"{path} does not contain the seed of an nkey, and nothing else"
        raise InvalidArgumentError(argument="nkey", reason=reason)
    seed = content.strip()
    _sign(seed, "")
    return seed


def _sign(seed: bytes, nonce: str) -> bytes:
    import nkeys

    try:
        key = nkeys.from_seed(bytearray(seed))
        signature = base64.b64encode(key.sign(nonce.encode()))
        key.wipe()
    except nkeys.NkeysError as error:
        # The text of the error says nothing of the seed.
        raise InvalidArgumentError(
            argument="nkey", reason=f"the seed is damaged: {error}"
        ) from error
    return signature


def _public_key(seed: bytes) -> str:
    import nkeys

    key = nkeys.from_seed(bytearray(seed))
    public = bytes(key.public_key).decode()
    key.wipe()
    return public


def _raw_url(signature: bytes) -> str:
    """Write a signature as servers of NATS write it."""
    return base64.urlsafe_b64encode(base64.b64decode(signature)).rstrip(b"=").decode()


def _read_secret(argument: str, path: StrPath) -> bytes:
    check_private(argument, path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unusable(argument, path, "a file", error) from error


def retried(function: Callable[P, T]) -> Callable[P, T]:
    """Make a wrong file, which may be right a moment later, an error after which nats-py tries to
    connect again."""

    def trying(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except InvalidArgumentError as error:
            raise nats.errors.Error(str(error)) from error

    return trying


def _no_passphrase() -> str:
    # Without this, OpenSSL asks on the terminal.
    return ""


def _unusable(argument: str, files: object, what: str, error: OSError) -> InvalidArgumentError:
    reason = f"{files} cannot be read as {what}: {error.strerror or error}"
    return InvalidArgumentError(argument=argument, reason=reason)


def _check_options(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if name not in NATS_OPTIONS:
            reason = _INSTEAD.get(name, f"no such option; use one of {_listed(NATS_OPTIONS)}")
            raise InvalidArgumentError(argument=name, reason=reason)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "connect_timeout" and not (is_number and value > 0):  # type: ignore[operator]
            reason = "it must be a number of seconds above 0"
            raise InvalidArgumentError(argument=name, reason=reason)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
