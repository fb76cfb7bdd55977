"""A small client of an OpenAI-compatible chat endpoint, on the standard library.

Called by the probe of a promotion and by `grpo chat`. An API key is taken from GRPO_API_KEY. Speaks what all servers
speak: messages, max_tokens, temperature, streaming.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.errors import PipelineError

TIMEOUT_SECONDS = 300.0
"""Longest wait for one reply."""


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
        text: what was said.
        truncated: whether the token limit cut it off.
    """

    text: str
    truncated: bool


def healthy(url: str, timeout_s: float = 3.0) -> bool:
    """Whether the server at a URL answers its health page.

    Args:
        url: without /v1.
        timeout_s: longest wait.
    """
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=timeout_s) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def ask(
    url: str,
    model: str,
    messages: Sequence[Mapping[str, str]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    extra: Mapping[str, Any] | None = None,
) -> Reply:
    """One reply.

    Args:
        url: without /v1.
        model: name of the served model.
        messages: role and content.
        max_tokens: most tokens of the reply.
        temperature: 0 is greedy.
        extra: further fields of the request.

    Raises:
        PipelineError: the endpoint does not answer, or refuses.
    """
    body = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
        "temperature": temperature,
        **(extra or {}),
    }
    for attempt in range(3):
        try:
            with _open(url, body) as answer:
                choice = json.loads(answer.read())["choices"][0]
            return Reply(choice["message"]["content"] or "", choice.get("finish_reason") == "length")
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504) or attempt == 2:
                raise PipelineError(f"{url} answered {error.code}: {_detail(error)}") from error
        except (OSError, KeyError, ValueError) as error:
            if attempt == 2:
                raise PipelineError(f"{url} does not answer as a chat endpoint does ({error})") from error
        time.sleep(1 + attempt)
    raise AssertionError("unreachable")


def stream(
    url: str,
    model: str,
    messages: Sequence[Mapping[str, str]],
    *,
    max_tokens: int,
    temperature: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """One reply, piece by piece.

    Args:
        url: without /v1.
        model: name of the served model.
        messages: role and content.
        max_tokens: most tokens of the reply.
        temperature: None leaves it to the model's generation config.
        extra: further fields of the request.

    Raises:
        PipelineError: the endpoint does not answer, or refuses.
    """
    body = {"model": model, "messages": [dict(m) for m in messages], "max_tokens": max_tokens, "stream": True}
    body |= {} if temperature is None else {"temperature": temperature}
    body |= extra or {}
    try:
        with _open(url, body) as answer:
            for line in answer:
                text = line.decode("utf-8").strip()
                if not text.startswith("data:") or text == "data: [DONE]":
                    continue
                event = json.loads(text.removeprefix("data:"))
                if "error" in event:
                    raise PipelineError(f"{url}: {event['error']}")
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content")
                    if piece:
                        yield piece
    except urllib.error.HTTPError as error:
        raise PipelineError(f"{url} answered {error.code}: {_detail(error)}") from error
    except (OSError, KeyError, ValueError) as error:
        raise PipelineError(f"{url} does not answer as a chat endpoint does ({error}); is it served?") from error


def _open(url: str, body: Mapping[str, Any]) -> Any:
    if not url.startswith(("http://", "https://")):
        raise PipelineError(f"endpoint {url!r} is no http(s) URL")
    headers = {"Content-Type": "application/json"}
    if os.environ.get("GRPO_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['GRPO_API_KEY']}"
    request = urllib.request.Request(  # noqa: S310 (http checked)
        f"{url.rstrip('/')}/v1/chat/completions", data=json.dumps(body).encode(), headers=headers
    )
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310


def _detail(error: urllib.error.HTTPError) -> str:
    text = error.read().decode("utf-8", errors="replace")
    try:
        return str(json.loads(text).get("detail") or text)[:300]
    except (ValueError, AttributeError):
        return text[:300]
