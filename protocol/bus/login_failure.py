"""Why NATS and a process did not accept each other, and what to do about it. Pure."""

from __future__ import annotations

import re
import ssl
from typing import Final

from holdfast.protocol.bus.nats_failures import LoginCutOffError, NoTlsError

_USER: Final = (
    "it does not accept this user",
    (
        "check the user and password in HOLDFAST_NATS, or --nats-creds or --nats-nkey; if the "
        "cluster asks for a token, name it in HOLDFAST_TOKEN or with --token-file; it may have "
        "expired, be revoked, or have all its connections: the auth service logs which"
    ),
)
_NO_TLS: Final = ("it offers no TLS", "turn TLS on in nats-server, or leave out the --tls options")
_UNKNOWN_CA: Final = (
    "no CA that is trusted here has signed its certificate",
    "--tls-ca FILE, with the certificate of its CA",
)
_EXPIRED: Final = (
    "its certificate has expired, or is not yet valid",
    "renew the certificate of nats-server; check the clocks of both machines",
)
_OTHER_HOST: Final = (
    "its certificate is for other hosts",
    "--nats with a host that the certificate names",
)
_WANTS_CERTIFICATE: Final = (
    "it asks for a client certificate",
    "--tls-cert FILE and --tls-key FILE",
)
_REFUSES_CERTIFICATE: Final = (
    "it does not accept the client certificate",
    "--tls-cert FILE with a valid certificate of a CA that nats-server trusts",
)
_CUT_OFF: Final = (
    "it ended the connection during the login",
    "--tls-cert FILE and --tls-key FILE, if it asks for a client certificate; its log says why",
)
#: By OpenSSL's code of a failed verification (X509_V_ERR in its x509_vfy.h).
_BY_VERIFY_CODE: Final = {
    **dict.fromkeys((9, 10), _EXPIRED),
    **dict.fromkeys((7, 18, 19, 20, 21), _UNKNOWN_CA),
    **dict.fromkeys((62, 64), _OTHER_HOST),
}
_CERTIFICATE_ALERT: Final = re.compile(
    "ALERT_(BAD_CERTIFICATE|CERTIFICATE_(EXPIRED|REVOKED|UNKNOWN)|UNKNOWN_CA|UNSUPPORTED_CERTIFICATE)"
)
_USER_REFUSED: Final = re.compile(
    "authorization violation|authentication (expired|revoked)", re.IGNORECASE
)


def login_failure(error: BaseException) -> tuple[str, str] | None:
    """Return the reason and what to try; None if `error` has to do with neither login nor TLS."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        other = (f"its certificate is not valid: {error.verify_message}", _UNKNOWN_CA[1])
        return _BY_VERIFY_CODE.get(error.verify_code, other)
    if isinstance(error, NoTlsError):
        return _NO_TLS
    if isinstance(error, LoginCutOffError):
        return _CUT_OFF
    if isinstance(error, ssl.SSLError):
        if "CERTIFICATE_REQUIRED" in text or "ALERT_HANDSHAKE_FAILURE" in text:
            return _WANTS_CERTIFICATE
        if _CERTIFICATE_ALERT.search(text):
            return _REFUSES_CERTIFICATE
    if _USER_REFUSED.search(text):
        return _USER
    return None
