#!/usr/bin/env python3
"""The peer of bench/gpu_torch: the same training step on the GPU in PyTorch, as a careful user would write it.

Started by the benchmark, which sends "run N" lines and gets one line of JSON for each: the seconds a step of N steps, the last
loss, peak memory. fp32 weights under bf16 autocast, fused AdamW, gradients clipped to norm 1. "quit" or the end of input ends it.
"""
import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, self.size = o, o.width // o.heads
        self.qkv = nn.Linear(o.width, (o.heads + 2 * o.kv_heads) * self.size, bias=o.family == "gpt2")
        self.out = nn.Linear(o.width, o.width, bias=o.family == "gpt2")

    def forward(self, x, turns):
        o, (batch, length, width) = self.o, x.shape
        q, k, v = self.qkv(x).split([o.heads * self.size, o.kv_heads * self.size, o.kv_heads * self.size], dim=-1)
        q, k, v = (t.view(batch, length, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if turns is not None:
            q, k = turn(q, *turns), turn(k, *turns)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=o.kv_heads != o.heads)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def turn(x, cosines, sines):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1).to(x.dtype)


class Gated(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.gate, self.up = nn.Linear(o.width, o.inner, bias=False), nn.Linear(o.width, o.inner, bias=False)
        self.down = nn.Linear(o.inner, o.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        norm = nn.LayerNorm if o.family == "gpt2" else nn.RMSNorm
        self.norm1, self.norm2, self.attention = norm(o.width), norm(o.width), Attention(o)
        self.mlp = (
            nn.Sequential(nn.Linear(o.width, o.inner), nn.GELU(approximate="tanh"), nn.Linear(o.inner, o.width))
            if o.family == "gpt2"
            else Gated(o)
        )

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.tokens = nn.Embedding(o.vocabulary, o.width)
        self.positions = nn.Embedding(o.sequence, o.width) if o.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = (nn.LayerNorm if o.family == "gpt2" else nn.RMSNorm)(o.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        size = o.width // o.heads
        angles = torch.outer(torch.arange(o.sequence), 500000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosines", angles.cos()), self.register_buffer("sines", angles.sin())

    def forward(self, ids, targets):
        x = self.tokens(ids)
        turns = None
        if self.positions is not None:
            x = x + self.positions.weight
        else:
            turns = (self.cosines, self.sines)
        for block in self.blocks:
            x = block(x, turns)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.float().view(-1, self.o.vocabulary), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in "layers width heads kv_heads inner sequence vocabulary batch".split():
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--family", choices=["gpt2", "llama"], required=True)
    parser.add_argument("--compile", action="store_true")
    o = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Model(o)
        ids = torch.randint(o.vocabulary, (o.batch, o.sequence + 1))
    run_model = torch.compile(model) if o.compile else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)], lr=1e-4, betas=(0.9, 0.95), fused=True
    )

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = run_model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(int(words[1])):
            loss = step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / int(words[1])
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(json.dumps(dict(seconds=seconds, loss=loss.item(), peak_gib=peak)), flush=True)


if __name__ == "__main__":
    main()
