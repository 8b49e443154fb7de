"""The errors of JetStream's API have the numbers of nats-server."""

from __future__ import annotations

import pickle

from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.errors import ApiError


def _all() -> dict[str, ApiError]:
    """Make every error; those that need an argument get one."""
    made = {}
    for name, make in vars(errors).items():
        if callable(make) and getattr(make, "__name__", "") == "<lambda>":
            made[name] = make() if make.__code__.co_argcount == 0 else make("argument")
    return made


def test_no_two_errors_have_one_number_and_each_has_a_code_of_http() -> None:
    made = _all()
    assert len(made) > 100
    assert len({each.err_code for each in made.values()}) == len(made)
    for name, each in made.items():
        assert each.code in (400, 404, 409, 412, 429, 500, 503), name
        assert 10000 < each.err_code < 10300, name
        assert each.description, name


def test_an_error_is_told_with_the_three_keys_that_clients_accept() -> None:
    assert errors.stream_not_found().to_json() == {
        "code": 404,
        "err_code": 10059,
        "description": "stream not found",
    }
    assert errors.wrong_last_sequence(7).to_json() == {
        "code": 400,
        "err_code": 10071,
        "description": "wrong last sequence: 7",
    }
    assert errors.stream_invalid_config("{odd} text %s").description == "{odd} text %s"


def test_errors_are_compared_by_what_they_say() -> None:
    assert errors.stream_not_found() == errors.stream_not_found()
    assert errors.stream_not_found() != errors.consumer_not_found()
    assert errors.stream_not_found() != "stream not found"
    assert hash(errors.stream_not_found()) == hash(errors.stream_not_found())
    assert pickle.loads(pickle.dumps(errors.bad_request())) == errors.bad_request()
    assert str(errors.bad_request()) == "400/10003 bad request"
    assert repr(errors.bad_request()) == "ApiError(400, 10003, 'bad request')"
