#!/usr/bin/env python3
"""The peer of bench/pipeline_torch: a GPT in two stages with torch.distributed.pipelining over Gloo, one thread a process.

Started by the benchmark, which sends "run N" lines and gets one line of JSON for each: the seconds of N steps and the last
loss. bf16 keeps fp32 weights under autocast. The second stage is a process of its own. "quit" or the end of input ends both.
"""
import argparse
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from gpt import Block

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Begin(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.hidden_size)
        self.positions = nn.Embedding(options.seq_len, options.hidden_size)
        self.blocks = nn.Sequential(*(Block(options.hidden_size, options.num_heads) for _ in range(options.num_layers // 2)))

    def forward(self, ids):
        return self.blocks(self.tokens(ids) + self.positions.weight[: ids.shape[1]])


class End(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(options.hidden_size, options.num_heads) for _ in range(options.num_layers - options.num_layers // 2)))
        self.norm = nn.LayerNorm(options.hidden_size)
        self.head = nn.Linear(options.hidden_size, options.vocab_size, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(x)))


def under_autocast(forward, x):
    with torch.autocast("cpu", torch.bfloat16):
        return forward(x)


def run_rank(rank, options, meeting):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    module = Begin(options) if rank == 0 else End(options)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(options.vocab_size, (options.micros, options.seq_len))
    if options.precision == "bf16":
        forward = module.forward
        module.forward = lambda x: under_autocast(forward, x)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))

    def loss_of(logits, targets):
        return F.cross_entropy(logits.float().view(-1, options.vocab_size), targets.view(-1))

    schedule = SCHEDULES[options.schedule](stage, options.micros, loss_fn=loss_of)

    def step():
        optimizer.zero_grad(set_to_none=True)
        losses = []
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=ids, losses=losses)
        optimizer.step()
        return sum(loss.item() for loss in losses) / max(1, len(losses))

    def follow(count):
        seconds, loss = [], 0.0
        for _ in range(count):
            dist.barrier()
            begin = time.perf_counter()
            loss = step()
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
        told = torch.tensor([loss])
        dist.broadcast(told, src=1)
        return seconds, told.item()

    count = torch.zeros(1, dtype=torch.long)
    if rank == 1:
        while True:
            dist.broadcast(count, src=0)
            if count.item() == 0:
                return
            follow(int(count.item()))
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        count[0] = int(words[1])
        dist.broadcast(count, src=0)
        seconds, loss = follow(int(words[1]))
        print(json.dumps(dict(seconds=seconds, loss=loss)), flush=True)
    count[0] = 0
    dist.broadcast(count, src=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(num_layers=8, hidden_size=256, num_heads=4, seq_len=128, vocab_size=512, micros=16).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        other = multiprocessing.get_context("spawn").Process(target=run_rank, args=(1, options, meeting))
        other.start()
        run_rank(0, options, meeting)
        other.join()


if __name__ == "__main__":
    main()
