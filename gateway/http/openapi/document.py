"""The whole document.

Tests check it by the schema of OpenAPI 3.1, compare its paths and methods with what a gateway
answers, and check the console's answers by their schemas.
"""

from __future__ import annotations

from typing import Final

from holdfast.gateway.http.openapi.console_paths import TAG, console_paths, console_schemas
from holdfast.gateway.http.openapi.durable_paths import durable_paths
from holdfast.gateway.http.openapi.elements import Json, json_answer, operation, problem_answer
from holdfast.gateway.http.openapi.native_paths import native_paths
from holdfast.gateway.http.openapi.schemas import native_schemas, parameters
from holdfast.protocol.distribution import version

PATH: Final = "/v1/openapi.json"
_CONSOLE: Final = (
    "The console's own API: it shows a cluster, and changes with the page, without notice."
)


def document() -> Json:
    """Return the document."""
    own = operation("openapi", "This document", {"200": json_answer("OpenAPI", {})})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "holdfast",
            "version": version(),
            "description": "Streams, key-value stores and durable streams over HTTP.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "tags": [{"name": TAG, "description": _CONSOLE}],
        "paths": {**native_paths(), **durable_paths(), **console_paths(), PATH: {"get": own}},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": parameters(),
            "responses": {"Problem": problem_answer()},
            "schemas": {**native_schemas(), **console_schemas()},
        },
    }
