#!/usr/bin/env python3
"""The peer of bench/gpu_torch: the same training step on the GPU in PyTorch, as a careful user would write it.

Started by the benchmark, which sends "run N" lines and gets one line of JSON for each: the seconds a step of N steps, the last
loss, peak memory. fp32 weights under bf16 autocast, or bf16 weights, gradients and moments (--states bf16); with --gemm fp8 FP8
GEMMs with one scale a tensor; fused AdamW, gradients clipped to norm 1. "quit" or the end of input ends it.
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
        self.o, self.size = o, o.hidden_size // o.num_heads
        self.norm = norm(o)
        self.qkv = linear(o, o.hidden_size, (o.num_heads + 2 * o.num_kv_heads) * self.size, bias=o.family in ("gpt2", "qwen2"))
        self.out = linear(o, o.hidden_size, o.hidden_size, bias=o.family == "gpt2")

    def forward(self, x, turns):
        o, (batch, length, width) = self.o, x.shape
        q, k, v = self.qkv(self.norm(x)).split([o.num_heads * self.size, o.num_kv_heads * self.size, o.num_kv_heads * self.size], dim=-1)
        q, k, v = (t.view(batch, length, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if turns is not None:
            q, k = turn(q, *turns), turn(k, *turns)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=o.num_kv_heads != o.num_heads)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


def norm(o):
    return nn.LayerNorm(o.hidden_size, eps=1e-5) if o.family == "gpt2" else nn.RMSNorm(o.hidden_size, eps=1e-6 if o.family == "qwen2" else 1e-5)


def to_fp8(x, kind):
    """A tensor as 8-bit floats, and what they are multiplied by to have it again."""
    most = torch.finfo(kind).max
    scale = x.abs().amax().float().clamp(min=1e-12) / most
    return (x.float() / scale).clamp(-most, most).to(kind), scale


def fp8_gemm(a, b, fast=False):
    """a @ b.t(), both (numbers, scale) by rows."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=fast)


class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return fp8_gemm(to_fp8(x, torch.float8_e4m3fn), to_fp8(weight, torch.float8_e4m3fn), fast=True)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        transposed = lambda pair: (pair[0].t().contiguous(), pair[1])
        dy8, x8, weight8 = to_fp8(dy, torch.float8_e5m2), to_fp8(x, torch.float8_e4m3fn), to_fp8(weight, torch.float8_e4m3fn)
        return fp8_gemm(dy8, transposed(weight8)), fp8_gemm(transposed(dy8), transposed(x8))


class Fp8Linear(nn.Linear):
    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        y = Fp8Product.apply(rows, self.weight.to(torch.bfloat16)).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def linear(o, width, out, bias):
    return (Fp8Linear if o.gemm == "fp8" else nn.Linear)(width, out, bias=bias)


def turn(x, cosines, sines):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.gated, bias = o.family != "gpt2", o.family == "gpt2"
        self.norm = norm(o)
        self.add_module("in", linear(o, o.hidden_size, o.ffn_size * (2 if self.gated else 1), bias=bias))
        self.out = linear(o, o.ffn_size, o.hidden_size, bias=bias)

    def forward(self, x):
        y = getattr(self, "in")(self.norm(x))
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            return x + self.out(F.silu(gate) * up)
        return x + self.out(F.gelu(y, approximate="tanh"))


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.attention, self.mlp = Attention(o), Mlp(o)

    def forward(self, x, turns):
        return self.mlp(self.attention(x, turns))


class Model(nn.Module):
    """Its parameters have the names of the benchmark's own model, and start by the same rules."""

    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embedding = nn.ModuleDict(dict(tokens=nn.Embedding(o.vocab_size, o.hidden_size)))
        if o.family == "gpt2":
            self.embedding["positions"] = nn.Embedding(o.seq_len, o.hidden_size)
        self.layers = nn.ModuleList(Block(o) for _ in range(o.num_layers))
        self.norm = norm(o)
        self.head = nn.Linear(o.hidden_size, o.vocab_size, bias=False) if o.untied else None
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = o.family == "gpt2" and name.endswith("out.weight")
                nn.init.normal_(parameter, std=0.02 / (2 * o.num_layers) ** 0.5 if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        size = o.hidden_size // o.num_heads
        base = 1000000.0 if o.family == "qwen2" else 500000.0
        angles = torch.outer(torch.arange(o.seq_len), base ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosines", angles.cos()), self.register_buffer("sines", angles.sin())

    def forward(self, ids, targets):
        x = self.embedding["tokens"](ids)
        turns = (self.cosines, self.sines)
        if self.o.family == "gpt2":
            x, turns = x + self.embedding["positions"].weight, None
        for layer in self.layers:
            x = layer(x, turns)
        logits = F.linear(self.norm(x), (self.head or self.embedding["tokens"]).weight)
        return F.cross_entropy(logits.float().view(-1, self.o.vocab_size), targets.reshape(-1))


def read_start(path, model, ids):
    """Numbers and tokens that the benchmark wrote: a line of JSON, [[name, elements], ...], floats, then int64."""
    parameters = dict(model.named_parameters())
    with open(path, "rb") as file:
        names = json.loads(file.readline())
        if sorted(name for name, _ in names) != sorted(parameters):
            raise SystemExit(f"{path}: {sorted(set(n for n, _ in names) ^ set(parameters))} are on one side only")
        with torch.no_grad():
            for name, elements in names:
                numbers = torch.frombuffer(bytearray(file.read(4 * elements)), dtype=torch.float32)
                parameters[name].copy_(numbers.view(parameters[name].shape))
            ids.copy_(torch.frombuffer(bytearray(file.read(8 * ids.numel())), dtype=torch.int64).view(ids.shape))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in "num_layers hidden_size num_heads num_kv_heads ffn_size seq_len vocab_size batch".split():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, required=True)
    parser.add_argument("--family", choices=["gpt2", "llama", "qwen2"], required=True)
    parser.add_argument("--untied", action="store_true", help="the head has a weight of its own")
    parser.add_argument("--states", choices=["fp32", "bf16"], default="fp32", help="weights, gradients and moments")
    parser.add_argument("--gemm", choices=["same", "fp8"], default="same", help="of the layers' matrices")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--type", choices=["bf16", "fp32"], default="bf16", help="of GEMMs: autocast")
    parser.add_argument("--start", help="a file with the numbers and tokens to start from")
    parser.add_argument("--compile", action="store_true")
    o = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest" if o.type == "fp32" else "high")
    with torch.device(o.device):
        model = Model(o)
        ids = torch.randint(o.vocab_size, (o.batch, o.seq_len + 1))
    if o.states == "bf16":
        cosines, sines = model.cosines, model.sines
        model.to(torch.bfloat16)
        model.cosines, model.sines = cosines, sines  # angles stay as they are
    if o.start:
        read_start(o.start, model, ids)
    run_model = torch.compile(model) if o.compile else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)], lr=1e-4, betas=(0.9, 0.95), fused=True
    )

    def step():
        with torch.autocast(o.device, torch.bfloat16, enabled=o.type == "bf16" and o.states == "fp32"):
            loss = run_model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def wait():
        if o.device == "cuda":
            torch.cuda.synchronize()

    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        wait()
        begin = time.perf_counter()
        for _ in range(int(words[1])):
            loss = step()
        wait()
        seconds = (time.perf_counter() - begin) / int(words[1])
        peak = torch.cuda.max_memory_allocated() / 2**30 if o.device == "cuda" else 0
        print(json.dumps(dict(seconds=seconds, loss=loss.item(), peak_gib=peak)), flush=True)


if __name__ == "__main__":
    main()
