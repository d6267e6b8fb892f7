"""What it means when a store in a cloud says no: the one table from its codes and statuses to causes and hints. Pure.

The code counts before the status. What nobody has written down here counts as refused where the store gave a reason,
and as something that may pass where it gave none: then it may not have been the store that answered.

The store's own words are never repeated: they may quote what it was sent.
"""

from __future__ import annotations

from holdfast.store.port import Cause, StoreRefused, StoreUnavailable

PASSING_CODES: dict[str, Cause] = {
    "SlowDown": "slow_down", "ServerBusy": "slow_down", "Throttling": "slow_down", "TooManyRequests": "slow_down",
    "RequestLimitExceeded": "slow_down", "ServiceUnavailable": "slow_down",
    "InternalError": "server_error",
    "OperationTimedOut": "timeout", "RequestTimeout": "timeout",
    "IncompleteBody": "truncated",
    "ConditionalRequestConflict": "conflict", "OperationAborted": "conflict",
    "BadDigest": "bad_digest", "XAmzContentSHA256Mismatch": "bad_digest", "XAmzContentChecksumMismatch": "bad_digest",
    "Md5Mismatch": "bad_digest",
    "ExpiredToken": "credentials", "InvalidToken": "credentials", "TokenRefreshRequired": "credentials",
}  # fmt: skip

LASTING_CODES: dict[str, Cause] = {
    "NoSuchBucket": "no_bucket", "ContainerNotFound": "no_bucket",
    "InvalidAccessKeyId": "credentials", "SignatureDoesNotMatch": "credentials", "AuthenticationFailed": "credentials",
    "RequestTimeTooSkewed": "clock_skew",
    "PermanentRedirect": "redirect", "TemporaryRedirect": "redirect", "AuthorizationHeaderMalformed": "redirect",
    "AccessDenied": "forbidden", "AllAccessDisabled": "forbidden", "AccountProblem": "forbidden",
    "NotImplemented": "unsupported",
}  # fmt: skip

_PASSING_STATUS: dict[int, Cause] = {408: "timeout", 409: "conflict", 416: "other", 429: "slow_down", 503: "slow_down"}

_LASTING_STATUS: dict[int, Cause] = {
    301: "redirect", 302: "redirect", 307: "redirect", 308: "redirect", 401: "credentials", 403: "forbidden",
    405: "unsupported", 501: "unsupported",
}  # fmt: skip

_HINTS: dict[Cause, str] = {
    "credentials": "the store does not know these credentials: see store.credentials",
    "no_bucket": "create the bucket, or correct the store's URL; holdfast creates no buckets",
    "forbidden": "allow to put, get, list and delete below the root; on S3 without s3:ListBucket, what is not there is "
    "forbidden",
    "unsupported": "the store must support conditional writes (If-None-Match: *)",
    "clock_skew": "set this machine's clock: the store refuses the time of its requests",
    "redirect": "set store.region to the bucket's region, or correct store.endpoint",
    "other": "see what the store says about this request",
}


def judged(status: int, code: str, key: str, retry_after: float = 0.0) -> StoreUnavailable | StoreRefused:
    """What an answer means that is no success."""
    said = f"status={status} code={code or '-'} key={key}"
    passing, lasting = PASSING_CODES.get(code), LASTING_CODES.get(code)
    if not passing and not lasting:
        passing, lasting = _PASSING_STATUS.get(status), _LASTING_STATUS.get(status)
    if not passing and not lasting and status >= 500:
        passing = "server_error"
    if passing:
        return StoreUnavailable(f"the store could not do it {said}", cause=passing, retry_after=retry_after)
    if lasting:
        return refused(f"the store refuses the request {said}", lasting)
    if 400 <= status < 500 and code and status != 404:
        return refused(f"the store refuses the request {said}", "other")
    return StoreUnavailable(f"the store's response was not understood {said}", cause="other")


def refused(message: str, cause: Cause, hint: str | None = None) -> StoreRefused:
    """Something that will not pass by itself, with what to do about it."""
    return StoreRefused(message, cause=cause, hint=hint or _HINTS.get(cause))
