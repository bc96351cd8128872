"""Logits of models, for tokens: standard input has [[folder, tokens], ...]; f32, little-endian, row by row."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
torch.backends.cuda.matmul.allow_tf32 = False
for folder, tokens in json.load(sys.stdin):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([tokens])
    if torch.cuda.is_available():
        model, tokens = model.cuda(), tokens.cuda()
    with torch.no_grad():
        logits = model(tokens).logits[0].float().cpu().contiguous()
    sys.stdout.buffer.write(logits.numpy().astype("<f4").tobytes())
