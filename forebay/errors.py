"""The error tree: what each kind means, and whose turn it is.

ForebayError
  ConfigError            before start: lists every fault at once
    CapacityError        the model, or one longest request, does not fit in memory
  ModelError             a model or tokenizer file is missing, broken or unsupported
  RequestRefused         the caller's turn: says what to change
    BadRequest           malformed, or an unknown or contradictory parameter
    NeverFits            larger than the pool or the configured length can ever hold
    QueueFull            bounded queue
  DeviceFault            the executor died: requests end with a reason
  InvariantError         a bug in forebay: stop, never continue
"""


class ForebayError(Exception):
    """Base of everything that forebay raises on purpose."""


class ConfigError(ForebayError):
    """Settings that cannot work together. The message lists every fault, one a line."""


class CapacityError(ConfigError):
    """The weights, or one request of `max_model_len`, do not fit. The message says what would."""


class ModelError(ForebayError):
    """A model or tokenizer file is missing, broken or of an unsupported kind."""


class RequestRefused(ForebayError):
    """A request that was not taken. `status_hint` is the HTTP status a server should answer."""

    status_hint = 400


class BadRequest(RequestRefused):
    """A malformed request: unknown, contradictory or out-of-range parameters."""


class NeverFits(RequestRefused):
    """A request larger than the pool, or the configured length, can ever hold."""


class QueueFull(RequestRefused):
    """The bounded queue has no room; try again later."""

    status_hint = 429


class DeviceFault(ForebayError):
    """The executor failed; requests in flight end with this reason."""


class InvariantError(ForebayError):
    """A promise inside forebay was broken. This is a bug: please report it with the message."""
