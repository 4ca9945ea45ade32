"""Exit codes and error messages of the commands."""

from streamtool.core.errors import RequestError, SettingsError, StreamtoolError, UpstreamError, UpstreamRefused

DONE, FAILED, USAGE_ERROR, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130


def message_of(error: StreamtoolError) -> str:
    """Return an error's message, preceded by the invalid field's path for an invalid request, and followed by a hint
    for some upstream errors.
    """
    if isinstance(error, RequestError) and error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    if isinstance(error, UpstreamError) and error.status in _ADVICE:
        return f"{error.message} ({error.status}: {_ADVICE[error.status]})"
    return error.message


_ADVICE = {
    401: "use --key-env to name the variable that holds the key",
    403: "use --key-env to name the variable that holds the key",
    404: "check --model and the URL",
}
"""Hints for error statuses returned by an upstream."""


def code_of(error: StreamtoolError) -> int:
    """Return the exit code for an error."""
    match error:
        case SettingsError() | RequestError():
            return USAGE_ERROR
        case UpstreamRefused() | UpstreamError(code="upstream_authentication"):
            return FAILED
        case UpstreamError():
            return UNREACHABLE
        case _:
            return FAILED


def is_of_plugin(error: ValueError) -> bool:
    """Return whether an error is about a format or family that another distribution adds."""
    from statemachine.formats import FormatError  # noqa: PLC0415  most commands need no formats

    return isinstance(error, FormatError)
