"""An LLM inference engine built around a paged KV cache.

>>> import octavo
>>> llm = octavo.LLM()
>>> output = llm.generate("The Vec type is", octavo.SamplingParams(max_tokens=8))[0]
>>> len(output.token_ids)
8
>>> llm.close()

- `octavo.LLM`: a model that answers many prompts at once.
- `octavo.kv_cache`: the cache alone, its memory shared with NumPy and torch.
- `octavo.attention`: attention over pages, on NumPy arrays.
"""

from . import attention, kv_cache
from ._octavo import __version__
from .llm import LLM, EngineOptions
from .outputs import Chunk, CompletionOutput, GenerationError, Logprob, RequestOutput, Usage
from .sampling import SamplingParams
from .streams import AsyncStream, Stream

__all__ = [
    "LLM",
    "AsyncStream",
    "Chunk",
    "CompletionOutput",
    "EngineOptions",
    "GenerationError",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "Stream",
    "Usage",
    "__version__",
    "attention",
    "kv_cache",
]
