"""Errors with a status of HTTP."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is refused; the text is for the person in front of the page."""

    status = 400


class TokenError(RequestError):
    status = 401


class HostError(RequestError):
    status = 403


class UnknownError(RequestError):
    status = 404


class TooLargeError(RequestError):
    status = 413


class MediaTypeError(RequestError):
    status = 415


class InvalidError(RequestError):
    status = 422


class NotReadyError(RequestError):
    status = 503
