"""Makes the models and the expected values under tests/fixtures/models.

Each model is tiny and random, from a fixed seed, in the layout of the Hugging Face hub. What it should answer is
computed here by transformers, in f32 with eager attention, and lies beside it in expected.json:

    prompts[].tokens         the prompt
    prompts[].first_row      position of the first row of logits that follows; they go up to the prompt's end
    prompts[].logits         f32 [rows, vocab]: little-endian bytes, base64
    prompts[].greedy         the 24 most likely tokens that follow, one after another
    inv_freq                 rotary frequencies by kind of layer, and the factor on cosines and sines

Run by `cargo xtask fixtures`; by hand: python tools/make_fixtures.py [OUT_DIR]
"""

import base64
import json
import pathlib
import shutil
import sys

import torch
import transformers

VOCAB = 200
GREEDY = 24
ROWS = 6
# A greedy choice must not hang on rounding: the runner-up stays behind by this share of the largest logit.
MARGIN = 4e-3

LLAMA = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    tie_word_embeddings=False,
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN3 = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    tie_word_embeddings=True,
)
GEMMA3 = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


def gemma_rope(full_theta, full=None, local_theta=10000.0):
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full_theta, **(full or {})},
        "sliding_attention": {"rope_type": "default", "rope_theta": local_theta},
    }


def old_llama(config):
    """The spelling of the rope before transformers 5."""
    rope = config.pop("rope_parameters")
    config |= dict(rope_theta=rope.pop("rope_theta"), rope_scaling=rope, torch_dtype=config.pop("dtype"))
    return config


def old_gemma(config):
    rope = config.pop("rope_parameters")
    config.pop("layer_types")
    config.pop("_sliding_window_pattern", None)
    return config | dict(
        rope_theta=rope["full_attention"]["rope_theta"],
        rope_local_base_freq=rope["sliding_attention"]["rope_theta"],
        rope_scaling=None,
        sliding_window_pattern=6,
        torch_dtype=config.pop("dtype"),
    )


# name -> (class of the configuration, its values, how it is saved)
MODELS = {
    "llama-gqa": (
        transformers.LlamaConfig,
        LLAMA | dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=64, rope_parameters=LLAMA3_ROPE),
        dict(spelling=old_llama),
    ),
    "llama-mqa": (
        transformers.LlamaConfig,
        LLAMA | dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=128, tie_word_embeddings=True),
        {},
    ),
    "llama-mha": (
        transformers.LlamaConfig,
        LLAMA | dict(num_attention_heads=2, num_key_value_heads=2, head_dim=96, num_hidden_layers=3),
        dict(drop=["num_key_value_heads"]),
    ),
    "llama-wide-head": (
        transformers.LlamaConfig,
        LLAMA
        | dict(
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=256,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        ),
        {},
    ),
    "llama-sharded": (
        transformers.LlamaConfig,
        LLAMA | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=None, hidden_size=64, num_hidden_layers=4),
        dict(shard="150KB", drop=["head_dim"]),
    ),
    "qwen3-gqa": (transformers.Qwen3Config, QWEN3, {}),
    "qwen3-bf16": (
        transformers.Qwen3Config,
        QWEN3 | dict(num_key_value_heads=1, tie_word_embeddings=False),
        dict(dtype=torch.bfloat16),
    ),
    "qwen3-window": (
        transformers.Qwen3Config,
        QWEN3 | dict(head_dim=64, num_hidden_layers=4, use_sliding_window=True, sliding_window=8, max_window_layers=2),
        {},
    ),
    "gemma3-mqa": (
        transformers.Gemma3TextConfig,
        GEMMA3
        | dict(
            hidden_size=16,
            num_hidden_layers=6,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=256,
            query_pre_attn_scalar=256,
            sliding_window=8,
            rope_parameters=gemma_rope(1000000.0),
        ),
        dict(spelling=old_gemma),
    ),
    "gemma3-gqa": (
        transformers.Gemma3TextConfig,
        GEMMA3
        | dict(
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            query_pre_attn_scalar=48,
            sliding_window=20,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            rope_parameters=gemma_rope(1000000.0, {"rope_type": "linear", "factor": 8.0}),
        ),
        {},
    ),
}


def randomise(model, generator):
    """Weights large enough that attention, norms and every layer leave a mark on the logits."""
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                centre = 0.0 if model.config.model_type.startswith("gemma3") else 1.0
                weight.copy_(centre + 0.25 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                weight.copy_(noise * (model.config.hidden_size ** -0.5))
            else:
                weight.copy_(noise * (1.6 * weight.shape[1] ** -0.5))
    return model


def greedy(model, tokens):
    """The continuation and the smallest lead of a chosen token over the runner-up, as a share of the largest logit."""
    row, lead = list(tokens), float("inf")
    for _ in range(GREEDY):
        logits = model(torch.tensor([row])).logits[0, -1]
        top = torch.topk(logits, 2)
        lead = min(lead, ((top.values[0] - top.values[1]) / logits.abs().max()).item())
        row.append(int(top.indices[0]))
    return row[len(tokens) :], lead


def prompts(model, generator):
    out = []
    for length in (1, 5, 16, 33, 70):
        for _ in range(200):
            tokens = torch.randint(0, VOCAB, (length,), generator=generator).tolist()
            chosen, lead = greedy(model, tokens)
            if lead > MARGIN:
                break
        else:
            raise SystemExit(f"no prompt of {length} tokens has clear choices")
        first = max(0, length - ROWS)
        logits = model(torch.tensor([tokens])).logits[0, first:].contiguous().numpy().astype("<f4")
        out.append(
            dict(
                tokens=tokens,
                first_row=first,
                logits=base64.b64encode(logits.tobytes()).decode(),
                greedy=chosen,
            )
        )
    return out


def frequencies(model):
    """`full_attention` and, where the model has it, `sliding_attention`."""
    rope = model.model.rotary_emb
    if hasattr(rope, "inv_freq"):
        kinds = {"full_attention": ("inv_freq", "attention_scaling")}
    else:
        kinds = {k: (f"{k}_inv_freq", f"{k}_attention_scaling") for k in ("full_attention", "sliding_attention")}
    return {
        kind: dict(values=getattr(rope, values).tolist(), scale=float(getattr(rope, scale)))
        for kind, (values, scale) in kinds.items()
    }


def save(model, folder, shard=None, drop=(), dtype=torch.float32, spelling=lambda config: config):
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shard) if shard else {}))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in drop:
        config.pop(key, None)
    config = spelling(config)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(name, seed, folder):
    kind, values, how = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    config = kind(**values, attn_implementation="eager", bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    randomise(model, generator)
    # Rounded as it will be stored, so that what is computed below belongs to what lies in the file.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(how.get("dtype", torch.float32)).float()
    model.tie_weights()
    with torch.no_grad():
        expected = dict(
            transformers=transformers.__version__,
            inv_freq=frequencies(model),
            prompts=prompts(model, generator),
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save(model, folder, **how)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/fixtures/models")
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS, start=1):
        make(name, seed, out / name)
        size = sum(file.stat().st_size for file in (out / name).iterdir())
        print(f"{name}: {size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
