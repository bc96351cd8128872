"""What is wrong is said in OpenAI's form, so that the official client raises the right exception."""

import openai
import pytest

MODEL = "octavo-demo"
ASK = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "options, param, code",
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 100000}, "n", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": "x" * 100_000}, "stop", "invalid_value"),
        ({"logit_bias": {"999999": 1}}, "logit_bias.999999", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": [999_999]}, "prompt", "invalid_value"),
        ({"suffix": "end"}, "suffix", "unsupported_value"),
        ({"extra_body": {"temprature": 1}}, "temprature", "unknown_field"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex", "invalid_grammar"),
        ({"prompt": "a b " * 5000}, "prompt", "context_length_exceeded"),
        ({"prompt": [5] * 4096}, "prompt", "context_length_exceeded"),
    ],
)
def test_a_completion_that_cannot_be_made_is_a_bad_request(server, options, param, code):
    with pytest.raises(openai.BadRequestError) as raised:
        server.openai().completions.create(**{"model": MODEL, "prompt": "a"} | options)
    error = raised.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.body["message"], error.body


@pytest.mark.parametrize(
    "options, param",
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
         "response_format.json_schema.schema"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": "hi " * 9000}]}, "messages"),
    ],
)
def test_a_conversation_that_cannot_be_answered_is_a_bad_request(server, options, param):
    with pytest.raises(openai.BadRequestError) as raised:
        server.openai().chat.completions.create(**{"model": MODEL, "messages": ASK} | options)
    assert raised.value.param == param, raised.value.body


def test_a_bad_request_for_a_stream_is_refused_before_the_stream_begins(server):
    with pytest.raises(openai.BadRequestError):
        server.openai().completions.create(model=MODEL, prompt="a", stream=True, temperature=-1)


def test_a_model_that_is_not_here_is_not_found(server):
    with pytest.raises(openai.NotFoundError) as raised:
        server.openai().completions.create(model="gpt-4", prompt="a")
    assert raised.value.code == "model_not_found" and "octavo-demo" in raised.value.message
    with pytest.raises(openai.NotFoundError):
        server.openai().models.retrieve("gpt-4")


def test_embeddings_are_not_found(server):
    with pytest.raises(openai.NotFoundError) as raised:
        server.openai().embeddings.create(model=MODEL, input="a")
    assert raised.value.code == "unknown_path" and "/v1/embeddings" in raised.value.message


def test_what_is_no_json_is_refused_with_the_place(server):
    json = {"content-type": "application/json"}
    answer = server.http.post("/v1/completions", content=b'{"prompt": "a",}', headers=json)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json"
    answer = server.http.post("/v1/completions", content=b"prompt=a")
    assert answer.status_code in (400, 415)
    answer = server.http.post("/v1/completions", content=b'{"prompt": "\xff"}', headers=json)
    assert answer.status_code == 400
    assert server.get("/v1/completions").status_code == 405


def test_a_body_that_is_too_large_is_refused(start):
    server = start("--max-body", "64KiB")
    answer = server.post("/v1/completions", prompt="a" * (1 << 20))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


def test_prompts_can_be_limited(start):
    server = start("--max-prompt-tokens", "8")
    with pytest.raises(openai.BadRequestError) as raised:
        server.openai().completions.create(model=MODEL, prompt=[5] * 9)
    assert raised.value.code == "context_length_exceeded" and "at most 8" in raised.value.message
    server.openai().completions.create(model=MODEL, prompt=[5] * 8, max_tokens=20)


def test_only_those_with_a_key_are_let_in(start):
    server = start("--api-key", "alpha", "--api-key", "beta", "--served-model-name", "mine")
    for key in ("gamma", "alph"):
        with pytest.raises(openai.AuthenticationError) as raised:
            server.openai(api_key=key).models.list()
        assert raised.value.code == "invalid_api_key"
    assert server.get("/v1/models").json()["error"]["code"] == "missing_api_key"
    for key in ("alpha", "beta"):
        assert [model.id for model in server.openai(api_key=key).models.list()] == ["mine"]
    assert server.get("/health").status_code == server.get("/metrics").status_code == 200
    assert "alpha" not in server.greeting + server.errors()


def test_everything_can_be_protected(start):
    server = start("--api-key", "alpha", "--protect-all")
    assert {server.get(path).status_code for path in ("/health", "/ready", "/metrics", "/version")} == {401}
    assert server.get("/").status_code == 200


def test_a_request_that_takes_too_long_fails_alone(start):
    server = start("--chunk", "1")
    with pytest.raises(openai.APIStatusError) as raised:
        server.openai().completions.create(
            model=MODEL, prompt=[7] * 4000, extra_body={"time_limit_ms": 1, "cache_salt": "x"}
        )
    assert raised.value.status_code == 504 and raised.value.code == "time_limit"
    server.wait_until_idle()
