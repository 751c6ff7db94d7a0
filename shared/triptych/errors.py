"""The one error tree, with each leaf's HTTP status, gRPC code and OpenAI type and code.

::

    TriptychError
    ├── InvalidRequestError      400  INVALID_ARGUMENT    the request can never succeed as it is
    │   └── ContextLengthError   400  INVALID_ARGUMENT    prompt (and output) do not fit the context
    ├── UnauthenticatedError     401  UNAUTHENTICATED
    ├── NotFoundError            404  NOT_FOUND           no such path
    │   └── ModelNotFoundError   404  NOT_FOUND           the model is not served here
    ├── MethodNotAllowedError    405  UNIMPLEMENTED
    ├── VocabularyNeededError    409  FAILED_PRECONDITION the tokenizer's vocabulary is not here
    ├── BodyTooLargeError        413  OUT_OF_RANGE        the body is over the limit
    ├── OverloadedError          429  RESOURCE_EXHAUSTED  try again after ``retry_after_s``
    │   └── RateLimitError       429  RESOURCE_EXHAUSTED  the key's limit; the same
    ├── ClientGoneError          499  CANCELLED           logged only
    ├── InternalError            500  INTERNAL
    ├── UnavailableError         503  UNAVAILABLE         try again after ``retry_after_s``
    └── DeadlineError            504  DEADLINE_EXCEEDED

Raise the leaf where the fact is known; ``http`` and ``rpc`` map it once at their edge. A message
names the limit and the value. ``SetupError`` stands apart: it ends a process.
"""

from typing import Any, ClassVar

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error object. ``code`` is OpenAI's string code (the HTTP status says the number)."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What an error response holds, and an SSE error event."""

    error: ErrorDetail


class TriptychError(Exception):
    """Root of the tree; never raised itself."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.param, self.retry_after_s))

    def body(self) -> ErrorBody:
        return ErrorBody(
            error=ErrorDetail(
                message=self.message, type=self.type, param=self.param, code=self.code
            )
        )


class InvalidRequestError(TriptychError):
    http_status = 400
    grpc_code = "INVALID_ARGUMENT"
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    code = "context_length_exceeded"


class UnauthenticatedError(TriptychError):
    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    type = "authentication_error"
    code = "invalid_api_key"


class NotFoundError(TriptychError):
    http_status = 404
    grpc_code = "NOT_FOUND"
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"


class MethodNotAllowedError(TriptychError):
    http_status = 405
    grpc_code = "UNIMPLEMENTED"
    type = "invalid_request_error"
    code = "method_not_allowed"


class VocabularyNeededError(TriptychError):
    http_status = 409
    grpc_code = "FAILED_PRECONDITION"
    type = "invalid_request_error"
    code = "vocabulary_needed"


class BodyTooLargeError(TriptychError):
    http_status = 413
    grpc_code = "OUT_OF_RANGE"
    type = "invalid_request_error"
    code = "request_too_large"


class OverloadedError(TriptychError):
    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    type = "rate_limit_error"
    code = "overloaded"


class RateLimitError(OverloadedError):
    code = "rate_limit_exceeded"


class ClientGoneError(TriptychError):
    http_status = 499
    grpc_code = "CANCELLED"
    type = "request_cancelled"
    code = "client_gone"


class InternalError(TriptychError):
    code = "internal_error"


class UnavailableError(TriptychError):
    http_status = 503
    grpc_code = "UNAVAILABLE"
    code = "unavailable"


class DeadlineError(TriptychError):
    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"
    code = "deadline_exceeded"


class SetupError(Exception):
    """A process cannot start or go on; the message is one line for the person who started it."""


LEAVES: tuple[type[TriptychError], ...] = (
    InvalidRequestError,
    ContextLengthError,
    UnauthenticatedError,
    NotFoundError,
    ModelNotFoundError,
    MethodNotAllowedError,
    VocabularyNeededError,
    BodyTooLargeError,
    OverloadedError,
    RateLimitError,
    ClientGoneError,
    InternalError,
    UnavailableError,
    DeadlineError,
)


def _rebuild(
    cls: type[TriptychError], message: str, param: str | None, retry_after_s: float | None
) -> TriptychError:
    return cls(message, param=param, retry_after_s=retry_after_s)
