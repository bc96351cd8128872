"""Logits of the model in a folder, for tokens on standard input: f32, little-endian, row by row."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
tokens = torch.tensor([json.load(sys.stdin)])
if torch.cuda.is_available():
    torch.backends.cuda.matmul.allow_tf32 = False
    model, tokens = model.cuda(), tokens.cuda()
with torch.no_grad():
    logits = model(tokens).logits[0].float().cpu().contiguous()
sys.stdout.buffer.write(logits.numpy().astype("<f4").tobytes())
