# pyright: basic
"""What an S3 failure means: whether a retry may help, and what the user can do about it."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from botocore.exceptions import (
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)

from driftline.errors import StoreUnavailable

RETRYABLE_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestTimeout",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
TRANSPORT_ERRORS = (BotoConnectionError, HTTPClientError, IncompleteReadError, ResponseStreamingError, OSError)
CREDENTIAL_CODES = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"}
)


def code(error: ClientError) -> str:
    """The store's error code."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status(error: ClientError) -> int:
    """The HTTP status."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(error: ClientError) -> bool:
    """Whether there is no such object (in a bucket that is there)."""
    return status(error) == 404 and code(error) != "NoSuchBucket"


def is_lost_condition(error: ClientError) -> bool:
    """Whether a conditional write lost. A conflict (409) means that somebody else is writing: retried."""
    return status(error) == 412 or code(error) == "PreconditionFailed"


def is_retryable(error: Exception) -> bool:
    """Whether trying again may help."""
    if isinstance(error, ClientError):
        return status(error) >= 500 or status(error) == 429 or code(error) in RETRYABLE_CODES
    return isinstance(error, TRANSPORT_ERRORS)


def brief(error: Exception) -> str:
    """One line about the failure, without credentials."""
    if isinstance(error, ClientError):
        return f"HTTP {status(error)} {code(error)}".strip()
    return type(error).__name__


def unavailable(error: Exception, what: str, bucket: str, endpoint: str | None) -> StoreUnavailable:
    """The error that ends an operation, with its remedy."""
    place = f"bucket {bucket!r} at {_shown(endpoint)}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        remedy = "no S3 credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
    elif isinstance(error, ClientError) and code(error) == "NoSuchBucket":
        remedy = "the bucket does not exist: create it, or set DRIFTLINE_BUCKET to another"
    elif isinstance(error, ClientError) and code(error) in CREDENTIAL_CODES:
        remedy = f"access was refused ({code(error)}): check the S3 credentials and the bucket's policy"
    elif isinstance(error, ClientError):
        remedy = f"the store keeps answering {brief(error)}: look at its log"
    else:
        remedy = (
            f"the endpoint does not answer ({brief(error)}): is it running (`driftline status`)? "
            "DRIFTLINE_S3_ENDPOINT and DRIFTLINE_BUCKET say where it is"
        )
    return StoreUnavailable(f"cannot {what} in {place}: {remedy}")


def _shown(endpoint: str | None) -> str:
    if endpoint is None:
        return "Amazon S3 (DRIFTLINE_S3_ENDPOINT is not set)"
    parts = urlsplit(endpoint)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
