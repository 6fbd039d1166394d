"""Every error that Tickwork's Django-free half raises, in one tree.

    TickworkError
    ├── ConfigurationError        a setting is missing or wrong; the program does not start
    ├── ContractError             a message does not follow the contract
    ├── BrokerError               the broker refused something
    │   └── BrokerUnavailable     the broker cannot be reached now; try again later
    ├── StoreFull                 the worker's local store reached its size limit
    └── JobError                  what job code may raise to steer its own fate
        ├── PermanentError        do not retry
        ├── RetryableError        retry, optionally not before `after` seconds
        └── JobCancelled          the job noticed its cancellation and stopped

The word *retryable* is data here (`JobError.retryable`): the server decides, the worker only reports.
"""


class TickworkError(Exception):
    """Base of every error raised by this package."""


class ConfigurationError(TickworkError):
    """A setting is missing or has a value that is not allowed; the text names it and what is allowed."""


class ContractError(TickworkError):
    """A message could not be decoded, or its version is not known here."""


class BrokerError(TickworkError):
    """The broker answered with a refusal."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached now; the caller keeps its work and tries again."""


class StoreFull(TickworkError):
    """The worker's local store reached its size limit; the text says which file and which limit."""


class JobError(TickworkError):
    """Base of the errors that job code raises on purpose.

    `retryable` tells the server what the author knows: True, False, or None for "no opinion".
    """

    retryable: bool | None = None


class PermanentError(JobError):
    """The job can never succeed with this input: the occurrence fails without another attempt."""

    retryable = False


class RetryableError(JobError):
    """The job failed for a passing reason and wants another attempt.

    `after` is the least number of seconds to wait, for example from an HTTP `Retry-After` header; the
    server waits for whichever is later, this or the backoff.
    """

    retryable = True

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class JobCancelled(JobError):
    """Raised by `ctx.raise_if_cancelled()`; the attempt ends as Cancelled (or TimedOut)."""

    retryable = False
