"""What to generate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SamplingParams"]


@dataclass
class SamplingParams:
    """How tokens are chosen, and when a text ends. `None` leaves it to the model's own settings.

    >>> SamplingParams(temperature=0.8, max_tokens=64, stop="\\n").stop
    ['\\n']
    """

    temperature: float | None = None
    """0 chooses the likeliest token."""
    top_k: int | None = None
    """Only the k likeliest; 0 for all."""
    top_p: float | None = None
    """Only the likeliest whose probabilities add up to this."""
    min_p: float | None = None
    """Only those at least this fraction as likely as the likeliest."""
    repetition_penalty: float | None = None
    """Above 1, what was there before is less likely, the prompt included."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that were generated before."""
    frequency_penalty: float = 0.0
    """The same, as many times as they were."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    seed: int = 0
    """The same seed gives the same text, whatever else runs."""
    logprobs: int | None = None
    """Says how likely each token was, and so many of the likeliest."""
    prompt_logprobs: int | None = None
    """The same for the prompt's own tokens; computes the whole prompt."""
    max_tokens: int = 128
    """The most tokens of the text."""
    min_tokens: int = 0
    """Before these, neither a token nor a text ends it."""
    stop: str | Sequence[str] = ()
    """Text that ends the text."""
    include_stop: bool = False
    """Whether the text keeps it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside the model's own."""
    ignore_eos: bool = False
    """The model's own do not."""
    n: int = 1
    """Continuations of each prompt."""
    best_of: int | None = None
    """Continuations to generate, of which the likeliest `n` are returned."""
    json_schema: str | Mapping[str, Any] | None = None
    """The text is JSON that this schema describes."""
    regex: str | None = None
    """The text matches this as a whole."""
    grammar: str | None = None
    """The text follows this grammar, in llguidance's dialect of Lark."""
    choices: Sequence[str] | None = None
    """The text is one of these."""
    salt: bytes = b""
    """Shares cached prefixes only with requests of the same salt."""
    priority: int = 0
    """Lower goes first."""
    time_limit: float | None = None
    """Fails if it has not ended after so many seconds."""

    def __post_init__(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else items("stop is a text or a list of texts", self.stop)
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias is a dict of tokens and numbers, not {type(self.logit_bias).__name__}")
        self.logit_bias = dict(self.logit_bias)
        self.stop_token_ids = items("stop_token_ids is a list of tokens", self.stop_token_ids)
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            self.json_schema = json.dumps(self.json_schema)
        if self.choices is not None:
            self.choices = items("choices is a list of texts", self.choices)


def items(what: str, value: Any) -> list[Any]:
    """What is in a list or an array."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{what}, not {type(value).__name__}")
    return list(value)
