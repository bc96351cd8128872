"""The paths beside the OpenAI API: models, tokens, health, metrics, the cache."""

import pytest
from octavo_server import wait_until

MODEL = "octavo-demo"
TEXT = "fn main() { println!(\"grüße, 世界\"); }"


def complete(server, prompt, **options):
    return server.openai().completions.create(model=MODEL, prompt=prompt, temperature=0, **options)


def test_the_model_is_listed_by_its_name(server):
    (model,) = server.openai().models.list()
    assert (model.id, model.owned_by, model.max_model_len) == (MODEL, "octavo", 4096)
    assert server.openai().models.retrieve(MODEL).id == MODEL


def test_a_model_may_have_several_names(start):
    server = start("--served-model-name", "org/first", "--served-model-name", "second")
    assert [model.id for model in server.openai().models.list()] == ["org/first", "second"]
    answers = [server.openai().completions.create(model=name, prompt="a") for name in ("org/first", "second")]
    assert {answer.model for answer in answers} == {"org/first"}
    assert server.openai().models.retrieve("org/first").root == MODEL


def test_text_becomes_tokens_and_tokens_become_text(server):
    answer = server.post("/tokenize", prompt=TEXT, return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > 5
    assert answer["max_model_len"] == 4096
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": TEXT}


def test_a_conversation_becomes_the_tokens_that_a_request_pays_for(server):
    messages = [{"role": "user", "content": "What is a slice?"}]
    count = server.post("/tokenize", messages=messages).json()["count"]
    answer = server.openai().chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert answer.usage.prompt_tokens == count


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 3}),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}),
        ("/detokenize", {"tokens": [999_999]}),
        ("/detokenize", {"tokens": "abc"}),
        ("/v1/cache/pins", {}),
        ("/v1/cache/pins", {"prompt": "never seen before"}),
    ],
)
def test_what_cannot_be_done_is_refused_in_openais_form(server, path, body):
    answer = server.post(path, **body)
    assert 400 <= answer.status_code < 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_health_and_readiness_are_told(server):
    assert server.get("/health").json()["status"] == "ok"
    assert server.get("/health").json()["last_audit"]["ok"] is True
    assert server.get("/ready").json() == {"ready": True, "why_not": None}
    assert server.get("/version").json()["device"].startswith("CPU")
    assert "octavo-demo" in server.get("/").text


def test_an_idle_server_is_audited_whenever_somebody_asks(start):
    server = start()
    audited = lambda: server.get("/health").json()["last_audit"]["at"]
    first = audited()
    wait_until(lambda: audited() > first, "it was audited again")


def test_every_answer_has_a_request_id_and_the_clients_own_is_kept(server):
    answer = server.http.get("/v1/models", headers={"x-request-id": "mine-7"})
    assert answer.headers["x-request-id"] == "mine-7"
    body = {"prompt": "a", "max_tokens": 1}
    answer = server.http.post("/v1/completions", json=body, headers={"x-request-id": "mine-8"})
    assert answer.json()["id"] == "cmpl-mine-8"
    ids = {server.get("/v1/models").headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2


def test_metrics_have_octavos_names_and_those_of_vllm(server):
    complete(server, "a", max_tokens=2)
    text = server.get("/metrics").text
    for name in [
        "octavo_pages{", "octavo_pages_capacity", "octavo_requests_running", "octavo_requests_waiting",
        "octavo_generation_tokens_total", "octavo_prefix_hit_tokens_total", "octavo_preemptions_total",
        "octavo_time_to_first_token_seconds_bucket", "octavo_http_requests_total",
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_success_total", "vllm:cache_config_info",
    ]:
        assert f"\n{name}" in text, name
    states = server.metric("octavo_pages")
    assert states == server.metric("octavo_pages_capacity") == server.cache()["pages"]["total"]


def test_metrics_count_what_was_asked_and_answered(start):
    server = start()
    complete(server, [5, 6, 7], max_tokens=4, extra_body={"ignore_eos": True})
    assert server.metric("octavo_prompt_tokens_total") == server.metric("vllm:prompt_tokens_total") == 3
    assert server.metric("octavo_generation_tokens_total") == 4
    assert server.metric('vllm:request_success_total{model_name="octavo-demo",engine="0",finished_reason="length"}') == 1


def test_the_names_of_vllm_can_be_left_out(start):
    text = start("--metrics-compat", "none").get("/metrics").text
    assert "vllm:" not in text and "octavo_pages_capacity" in text


def test_the_cache_shows_its_pages_and_forgets_prefixes_on_request(start):
    server = start()
    complete(server, [9] * 100, max_tokens=2)
    server.wait_until_idle()
    pages = server.pages()
    assert pages["cached"] >= 6
    assert server.http.delete("/v1/cache/prefixes").json()["freed_pages"] == pages["cached"]
    assert server.pages()["cached"] == 0
    answer = complete(server, [9] * 100, max_tokens=2)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_pinned_prefix_stays(start):
    server = start()
    prompt = [9] * 100
    complete(server, prompt, max_tokens=2)
    pin = server.post("/v1/cache/pins", tokens=prompt)
    assert pin.status_code == 201 and pin.json()["pinned_tokens"] == 96
    server.wait_until_idle()
    server.http.delete("/v1/cache/prefixes")
    assert server.pages()["pinned"] == server.pages()["cached"] == 6
    assert complete(server, prompt, max_tokens=2).usage.prompt_tokens_details.cached_tokens >= 96
    assert server.http.delete(f"/v1/cache/pins/{pin.json()['id']}").json()["deleted"] is True
    assert server.http.delete(f"/v1/cache/pins/{pin.json()['id']}").status_code == 404
    server.wait_until_idle()
    server.http.delete("/v1/cache/prefixes")
    assert server.pages()["cached"] == 0


def test_pages_of_other_origins_are_let_in_only_if_named(start):
    origin = {"origin": "https://example.org"}
    open_to_one = start("--cors-origin", "https://example.org")
    allowed = open_to_one.http.get("/v1/models", headers=origin).headers
    assert allowed["access-control-allow-origin"] == "https://example.org"
    other = open_to_one.http.get("/v1/models", headers={"origin": "https://example.com"}).headers
    assert "access-control-allow-origin" not in other
