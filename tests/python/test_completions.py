"""`/v1/completions` by the official client, with both back ends."""

import re

import pytest

MODEL = "octavo-demo"
PROMPT = "The Rust programming language"


def complete(server, prompt=PROMPT, **options):
    options = {"max_tokens": 24, "temperature": 0} | options
    return server.openai().completions.create(model=MODEL, prompt=prompt, **options)


def streamed(server, prompt=PROMPT, **options):
    """The text, the finish reasons and the last chunk of a stream with one choice."""
    text, reasons, chunk = "", [], None
    for chunk in complete(server, prompt, stream=True, **options):
        for choice in chunk.choices:
            text += choice.text
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasons, chunk


def test_the_answer_is_as_long_as_asked_and_says_what_it_took(either):
    answer = complete(either, max_tokens=5)
    assert answer.object == "text_completion" and answer.model == MODEL and answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (4, 5, 9)


def test_without_max_tokens_there_are_sixteen(either):
    answer = either.openai().completions.create(model=MODEL, prompt=PROMPT, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_the_streamed_text_is_the_whole_text(either):
    whole = complete(either).choices[0]
    text, reasons, _ = streamed(either)
    assert text == whole.text and reasons == [whole.finish_reason]


def test_both_back_ends_give_the_same_answers_whole_and_streamed(both):
    for options in [{}, {"temperature": 1, "seed": 7, "n": 3}, {"logprobs": 3, "echo": True}, {"stop": "."}]:
        paged, contiguous = (complete(both[name], max_tokens=60, **options) for name in ("paged", "contiguous"))
        assert paged.choices == contiguous.choices, options
    paged, contiguous = (streamed(both[name], max_tokens=60)[:2] for name in ("paged", "contiguous"))
    assert paged == contiguous


def test_usage_comes_last_in_a_stream_that_asks_for_it(either):
    _, _, last = streamed(either, max_tokens=7, stream_options={"include_usage": True})
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (4, 7)
    chunks = list(complete(either, stream=True))
    assert all(chunk.usage is None for chunk in chunks)


def test_n_choices_are_numbered_and_each_is_drawn_for_itself(either):
    answer = complete(either, n=4, temperature=1, seed=1, max_tokens=32)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) > 1
    texts = {index: "" for index in range(4)}
    for chunk in complete(either, n=4, temperature=1, seed=1, max_tokens=32, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in answer.choices] == list(texts.values())


def test_the_best_of_many_is_chosen_by_likelihood(either):
    many = complete(either, n=4, temperature=1, seed=3, logprobs=0)
    best = complete(either, n=1, best_of=4, temperature=1, seed=3, logprobs=0)
    mean = lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
    assert best.choices[0].text == max(many.choices, key=mean).text


def test_a_seed_repeats_itself_and_another_one_does_not(either):
    draw = lambda seed: complete(either, temperature=1, seed=seed, max_tokens=40).choices[0].text
    assert draw(5) == draw(5)
    assert len({draw(seed) for seed in range(5)}) > 1


def test_a_stop_string_ends_the_text_before_it_and_is_named(either):
    whole = complete(either, max_tokens=60).choices[0].text
    stop = whole[20:26]
    choice = complete(either, max_tokens=60, stop=["never said", stop]).choices[0]
    assert choice.finish_reason == "stop" and choice.stop_reason == stop
    assert choice.text == whole[: whole.index(stop)]
    assert streamed(either, max_tokens=60, stop=stop)[:2] == (choice.text, ["stop"])
    kept = complete(either, max_tokens=60, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == choice.text + stop


def test_logprobs_have_a_row_a_token_and_its_likeliest_rivals(either):
    choice = complete(either, logprobs=3).choices[0]
    rows = choice.logprobs
    assert "".join(rows.tokens) == choice.text
    assert len(rows.tokens) == len(rows.token_logprobs) == len(rows.top_logprobs) == len(rows.text_offset)
    for token, logprob, top, offset in zip(rows.tokens, rows.token_logprobs, rows.top_logprobs, rows.text_offset):
        assert len(top) == 3 and logprob <= 0
        assert max(top, key=top.get) == token, "at temperature 0 the likeliest is taken"
        assert top[token] == pytest.approx(logprob, rel=1e-5)
        assert choice.text[offset:].startswith(token)


def test_streamed_logprobs_are_those_of_the_whole(either):
    whole = complete(either, logprobs=2).choices[0].logprobs
    tokens, logprobs, offsets = [], [], []
    for chunk in complete(either, logprobs=2, stream=True):
        for choice in chunk.choices:
            if choice.logprobs:
                tokens += choice.logprobs.tokens
                logprobs += choice.logprobs.token_logprobs
                offsets += choice.logprobs.text_offset
    assert (tokens, logprobs, offsets) == (whole.tokens, whole.token_logprobs, whole.text_offset)


def test_an_echo_repeats_the_prompt_with_its_logprobs(either):
    plain = complete(either).choices[0].text
    echoed = complete(either, echo=True, logprobs=1).choices[0]
    assert echoed.text == PROMPT + plain
    assert "".join(echoed.logprobs.tokens) == echoed.text
    assert echoed.logprobs.token_logprobs[0] is None, "nothing comes before the first token"
    assert all(logprob <= 0 for logprob in echoed.logprobs.token_logprobs[1:])
    assert streamed(either, echo=True)[0] == echoed.text
    scored = complete(either, echo=True, logprobs=1, max_tokens=0).choices[0]
    assert scored.text == PROMPT
    assert scored.logprobs.token_logprobs == echoed.logprobs.token_logprobs[:4]


def test_token_ids_are_a_prompt_like_text(either):
    tokens = either.post("/tokenize", prompt=PROMPT).json()["tokens"]
    assert complete(either, tokens).choices == complete(either).choices
    answer = complete(either, [tokens, tokens[:2]])
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text == complete(either).choices[0].text
    assert answer.usage.prompt_tokens == 6


def test_several_prompts_are_answered_in_their_order(either):
    prompts = ["A slice is", "Ownership is", "A trait"]
    answer = complete(either, prompts, n=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    alone = [complete(either, prompt).choices[0].text for prompt in prompts]
    assert [choice.text for choice in answer.choices] == [text for text in alone for _ in range(2)]


def test_a_regular_expression_is_matched(either):
    body = {"structured_outputs": {"regex": "v[0-9]{1,2}\\.[0-9]"}}
    text = complete(either, "The version is", extra_body=body).choices[0].text
    assert re.fullmatch("v[0-9]{1,2}\\.[0-9]", text), text


def test_one_of_a_list_of_choices_is_taken(either):
    body = {"structured_outputs": {"choice": ["stack", "heap"]}}
    assert complete(either, "A Box lives on the", extra_body=body).choices[0].text in ("stack", "heap")


def test_a_bias_rules_a_token_out(either):
    first = complete(either, max_tokens=1, logprobs=0).choices[0].logprobs.tokens[0]
    (token,) = either.post("/tokenize", prompt=first, add_special_tokens=False).json()["tokens"]
    other = complete(either, max_tokens=1, logprobs=0, logit_bias={str(token): -100})
    assert other.choices[0].logprobs.tokens[0] != first
