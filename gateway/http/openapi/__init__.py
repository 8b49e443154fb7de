"""The OpenAPI document of the gateway: what programs read instead of docs/http.md."""
