"""What comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Chunk", "CompletionOutput", "GenerationError", "Logprob", "RequestOutput", "Usage"]


@dataclass(frozen=True)
class Logprob:
    """How likely a token was."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest."""
    top: list[tuple[int, float]]
    """The likeliest tokens, as many as were asked for."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a text as it comes."""

    text: str
    """Empty while a character or a stop string may be under way."""
    token_id: int | None
    """None for the last chunk of a continuation, which brings the text that was held back."""
    index: int = 0
    """Which continuation, where several were asked for."""
    logprob: Logprob | None = None
    finish_reason: str | None = None
    """Set in the last chunk: stop, length or cancelled."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """stop, length, cancelled, or None if it failed."""
    stop_index: int | None
    """Which stop text ended it."""
    logprobs: list[Logprob]


@dataclass(frozen=True)
class Usage:
    """What a request took. Times are in seconds."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int
    queued: float
    prefill: float
    decode: float
    preemptions: int


@dataclass(frozen=True)
class RequestOutput:
    """What became of one prompt."""

    prompt: str | None
    """As it was given, if it was text."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[Logprob | None]
    usage: Usage
    error: str | None
    """Why it could not be finished, if it could not."""

    @property
    def text(self) -> str:
        """The first continuation."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def token_ids(self) -> list[int]:
        """The first continuation's tokens."""
        return self.outputs[0].token_ids if self.outputs else []

    @property
    def finish_reason(self) -> str | None:
        """Why the first continuation ended: stop, length or cancelled."""
        return self.outputs[0].finish_reason if self.outputs else None

    def __str__(self) -> str:
        return self.text


class GenerationError(RuntimeError):
    """Some requests could not be finished. `outputs` has everything that there is."""

    def __init__(self, message: str, outputs: Sequence[RequestOutput]) -> None:
        super().__init__(message)
        self.outputs = list(outputs)

    def __reduce__(self) -> tuple[type[GenerationError], tuple[str, list[RequestOutput]]]:
        return type(self), (str(self), self.outputs)


def logprob(entry: tuple[int, float, int, list[tuple[int, float]]] | None) -> Logprob | None:
    return None if entry is None else Logprob(*entry)


def request_output(prompt: str | None, token_ids: list[int], raw: dict[str, Any]) -> RequestOutput:
    """From what the engine says."""
    outputs = [
        CompletionOutput(
            index=index,
            text=choice["text"],
            token_ids=choice["token_ids"],
            finish_reason=choice["finish_reason"],
            stop_index=choice["stop_index"],
            logprobs=[Logprob(*entry) for entry in choice["logprobs"]],
        )
        for index, choice in enumerate(raw["choices"])
    ]
    usage = Usage(
        prompt_tokens=raw["prompt_tokens"],
        cached_tokens=raw["cached_tokens"],
        completion_tokens=raw["completion_tokens"],
        queued=raw["queued"],
        prefill=raw["prefill"],
        decode=raw["decode"],
        preemptions=raw["preemptions"],
    )
    prompt_logprobs = [logprob(entry) for entry in raw["prompt_logprobs"]]
    return RequestOutput(prompt, token_ids, outputs, prompt_logprobs, usage, raw["error"])


def checked(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """The same, unless something failed."""
    errors = [output.error for output in outputs if output.error is not None]
    if errors:
        raise GenerationError(f"{len(errors)} of {len(outputs)} requests failed: {errors[0]}", outputs)
    return outputs
