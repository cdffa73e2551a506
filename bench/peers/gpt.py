#!/usr/bin/env python3
"""The peer of bench/gpt_torch: the same GPT-2 training step in PyTorch, as a careful user would write it.

Started by the benchmark, which sends "run N" lines and gets one line of JSON for each: the seconds of N steps, the last loss,
peak and starting memory. bf16 keeps fp32 weights under autocast. "quit" or the end of input ends it.
"""
import argparse
import contextlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def status_mb(field):
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024


IMPORTED_MB = status_mb("VmRSS")


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.hidden_size)
        self.positions = nn.Embedding(options.seq_len, options.hidden_size)
        self.blocks = nn.ModuleList(Block(options.hidden_size, options.num_heads) for _ in range(options.num_layers))
        self.norm = nn.LayerNorm(options.hidden_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(num_layers=4, hidden_size=256, num_heads=4, seq_len=256, vocab_size=256, batch=8, threads=2).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Gpt(options)
    run_model = torch.compile(model) if options.compile else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)], lr=1e-3, betas=(0.9, 0.95), fused=True
    )
    cast = lambda: torch.autocast("cpu", torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext()
    ids = torch.randint(options.vocab_size, (options.batch, options.seq_len + 1))

    def step():
        with cast():
            logits = run_model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, options.vocab_size), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        seconds, loss = [], None
        for _ in range(int(words[1])):
            begin = time.perf_counter()
            loss = step()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps(dict(seconds=seconds, loss=loss, peak_mb=status_mb("VmHWM"), start_mb=IMPORTED_MB)), flush=True)


if __name__ == "__main__":
    main()
