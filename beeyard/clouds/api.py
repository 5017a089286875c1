"""A provider's HTTP API: one key in one header, limits on every wait, and failures as sentences without the key."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from beeyard.clouds.pods import CloudError, KeyRefused, NoFunds, NotThere, Unclear

LONGEST_ANSWER_S = 30.0
TRIES = 4
LONGEST_PAUSE_S = 30.0
MANY_CHARACTERS = 300

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class Api:
    """
    One provider's API at one address.

    Reads, and writes that may be done twice, are asked again after 429, 5xx and broken connections. A write that may
    not is never sent twice once it may have arrived: its failure is ``Unclear``.
    """

    def __init__(
        self,
        title: str,
        url: str,
        key: str,
        where_keys: str,
        answer_s: float = LONGEST_ANSWER_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.title, self.where_keys = title, where_keys
        self._key, self._pause, self._url = key, pause, url.rstrip("/")
        self._answer_s = answer_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}", "User-Agent": "beeyard"},
            timeout=httpx.Timeout(answer_s, connect=min(10.0, answer_s)),
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        *,
        is_repeatable: bool = True,
    ) -> Any:
        """
        What the API answers, as JSON; None for an empty answer.

        :raises CloudError: or one of its kinds, by status.
        """
        for attempt in range(TRIES):
            is_last = attempt == TRIES - 1
            try:
                answer = self._client.request(method, self._url + path, json=body, params=query)
            except httpx.TransportError as error:
                never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if is_last or not (is_repeatable or never_sent):
                    raise self._no_answer(error) from None
                self._pause(2.0**attempt)
                continue
            # A 429 was not done, whatever it was.
            is_worth_it = answer.status_code == 429 or (answer.status_code >= 500 and is_repeatable)
            if is_worth_it and not is_last:
                self._pause(_told_to_wait(answer) or 2.0**attempt)
                continue
            return self._read(answer)
        raise AssertionError("the last try returns or raises")

    def _no_answer(self, error: httpx.TransportError) -> Unclear:
        what = f"gave no answer within {self._answer_s:g} s" if isinstance(error, httpx.TimeoutException) else (
            f"cannot be reached ({self.without_key(str(error)) or type(error).__name__})"
        )  # fmt: skip
        return Unclear(f"{self.title}'s API {what}. Fix: look at this machine's network, then try again")

    def _read(self, answer: httpx.Response) -> Any:
        if not answer.is_success:
            self._refuse(answer.status_code, said(answer))
        try:
            return answer.json() if answer.content else None
        except json.JSONDecodeError:
            raise CloudError(
                f"{self.title}'s API answers {answer.status_code} with something that is not JSON. "
                "Fix: try again; if it stays, its documentation may have changed"
            ) from None

    def _refuse(self, status: int, text: str) -> NoReturn:
        told = f" ({self.without_key(text)})" if text else ""
        if status in (401, 403):
            raise KeyRefused(
                f"{self.title} does not take this API key{told}. Fix: make one that may manage pods at "
                f"{self.where_keys}"
            )
        if status == 402 or tells_of_money(text):
            raise NoFunds(
                f"{self.title} wants money first{told}. Fix: add credit to the account, or take a cheaper card"
            )
        if status in (404, 410):
            raise NotThere(f"{self.title} knows nothing there{told}. Fix: look at `beeyard pods list`")
        if status == 429:
            raise CloudError(
                f"{self.title} says that it is asked too often{told}. Fix: wait a minute, then try again"
            )
        if status >= 500:
            raise Unclear(f"{self.title}'s API fails with {status}{told}. Fix: see its status page, try again later")
        raise CloudError(f"{self.title} refuses with {status}{told}. Fix: change what is asked for")

    def without_key(self, text: str) -> str:
        """A text of the provider's as it may be shown."""
        return " ".join(text.split()).replace(self._key, "***")[:MANY_CHARACTERS]


def said(answer: httpx.Response) -> str:
    """What an error's body says, whichever of the providers' forms it has."""
    try:
        body = answer.json()
    except ValueError:
        return "" if "html" in answer.headers.get("Content-Type", "") else answer.text
    if isinstance(body, list):
        body = body[0] if body else {}
    if not isinstance(body, dict):
        return str(body)
    found = [body[key] for key in ("error", "msg", "message", "detail", "title") if isinstance(body.get(key), str)]
    return ": ".join(found)


def tells_of_money(text: str) -> bool:
    """Whether a refusal is about the account's balance, for which the providers have words and no code."""
    words = text.lower()
    return any(word in words for word in ("balance", "credit", "funds", "spending limit"))


def _told_to_wait(answer: httpx.Response) -> float | None:
    told = answer.headers.get("Retry-After", "")
    return min(float(told), LONGEST_PAUSE_S) if told.isdigit() else None


def shaped(kind: type[Model], answer: object, title: str) -> Model:
    """
    An answer as we rely on it.

    :raises CloudError: where it is not so.
    """
    return _validated(TypeAdapter(kind), answer, title)


def listed(kind: type[Model], answer: object, title: str) -> list[Model]:
    """The same for a list."""
    return _validated(TypeAdapter(list[kind]), answer, title)  # type: ignore[valid-type]


def _validated(adapter: TypeAdapter[T], answer: object, title: str) -> T:
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        # What was sent may hold secrets: only where and what is wrong is told.
        where = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
        raise CloudError(
            f"{title}'s API answers in another shape than it did ({where}). Fix: see whether Beeyard is newer; "
            "meanwhile use the provider's console"
        ) from None
