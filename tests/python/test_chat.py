"""`/v1/chat/completions` by the official client, with both back ends."""

import json
from typing import Literal

import pydantic
import pytest

MODEL = "octavo-demo"
ASK = [{"role": "user", "content": "What does Vec::push do?"}]
LONG = [
    {"role": "system", "content": "You answer questions about the Rust programming language. " * 6},
    {"role": "user", "content": "What is ownership?"},
]


def chat(server, messages=ASK, **options):
    options = {"temperature": 0, "max_tokens": 64} | options
    return server.openai().chat.completions.create(model=MODEL, messages=messages, **options)


def streamed(server, messages=ASK, **options):
    """The text and the finish reasons of a stream with one choice."""
    text, reasons = "", []
    for chunk in chat(server, messages, stream=True, **options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasons


def test_a_question_is_answered(either):
    answer = chat(either)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    message = answer.choices[0].message
    assert message.role == "assistant" and "appends" in message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_streamed_text_is_the_whole_text(either):
    whole = chat(either).choices[0]
    assert streamed(either) == (whole.message.content, [whole.finish_reason])


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(either):
    chunks = [chunk.choices[0] for chunk in chat(either, stream=True)]
    assert chunks[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_both_back_ends_say_the_same(both):
    for options in [{}, {"temperature": 1, "seed": 2, "n": 2}, {"logprobs": True, "top_logprobs": 4}]:
        paged, contiguous = (chat(both[name], LONG, **options) for name in ("paged", "contiguous"))
        assert paged.choices == contiguous.choices, options


def test_the_conversation_so_far_is_known(either):
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    assert "Ada" in chat(either, messages).choices[0].message.content


def test_the_second_time_the_prompt_comes_from_the_cache(start):
    server = start()
    first, second = chat(server, LONG), chat(server, LONG)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens - 16 <= cached < second.usage.prompt_tokens
    assert first.choices == second.choices
    last = list(chat(server, LONG, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.usage.prompt_tokens_details.cached_tokens == cached


def test_the_contiguous_back_end_caches_no_prefix(both):
    usages = [chat(both["contiguous"], LONG).usage for _ in range(2)]
    assert [usage.prompt_tokens_details.cached_tokens for usage in usages] == [0, 0]


def test_other_salts_share_nothing(start):
    server = start()
    cached = lambda salt: chat(server, LONG, extra_body=salt).usage.prompt_tokens_details.cached_tokens
    assert cached({"cache_salt": "a"}) == 0
    assert cached({"cache_salt": "b"}) == 0
    assert cached({}) == 0
    assert cached({"cache_salt": "a"}) > 0


def test_logprobs_have_bytes_and_the_likeliest_rivals(either):
    choice = chat(either, logprobs=True, top_logprobs=2).choices[0]
    rows = choice.logprobs.content
    text = b"".join(bytes(row.bytes) for row in rows).decode()
    assert text == choice.message.content
    for row in rows:
        assert len(row.top_logprobs) == 2 and row.top_logprobs[0].token == row.token
        assert row.top_logprobs[0].logprob == row.logprob <= 0
    parts = [chunk.choices[0].logprobs for chunk in chat(either, stream=True, logprobs=True, top_logprobs=2)]
    assert [row for part in parts if part for row in part.content] == rows


def test_a_schema_is_kept_to(either):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "stable": {"type": "boolean"},
            "edition": {"enum": [2015, 2018, 2021, 2024]},
        },
        "required": ["name", "stable", "edition"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "feature", "schema": schema, "strict": True}}
    for options in [{}, {"temperature": 1, "seed": 4}]:
        choice = chat(either, response_format=form, max_tokens=200, **options).choices[0]
        assert choice.finish_reason == "stop"
        value = json.loads(choice.message.content)
        assert set(value) == {"name", "stable", "edition"}
        assert isinstance(value["name"], str) and len(value["name"]) <= 20
        assert isinstance(value["stable"], bool) and value["edition"] in (2015, 2018, 2021, 2024)
    assert streamed(either, response_format=form, max_tokens=200)[1] == ["stop"]


def test_a_pydantic_model_is_filled_in(either):
    class Fact(pydantic.BaseModel):
        safe: bool
        edition: Literal[2021, 2024]

    parsed = either.openai().chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Fact, max_tokens=200, temperature=1, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Fact)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_are_known(either, name):
    answer = either.openai().chat.completions.create(model=MODEL, messages=ASK, **{name: 3})
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"


def test_tools_are_offered_and_the_model_may_answer_anyway(either):
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    for choice in ("auto", "none"):
        answer = chat(either, tools=tools, tool_choice=choice)
        assert answer.choices[0].message.content
