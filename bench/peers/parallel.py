#!/usr/bin/env python3
"""The peers of bench/parallel_torch: the GPT-2 training step of gpt.py on two processes of one thread each, over Gloo.

--kind ddp: DistributedDataParallel; bf16 keeps fp32 weights under autocast, gradients are summed in fp32. --kind fsdp: FSDP2
(fully_shard on every block and on the rest), weights gathered in bf16 where that is the precision, gradients summed in fp32.

The benchmark sends "run N" lines and gets one line of JSON for each: the seconds of N steps on both processes, and the loss.
"""
import argparse
import contextlib
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F

from gpt import Gpt


def shard(model, low):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if low else None, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def make_step(options, rank):
    torch.manual_seed(1)
    model = Gpt(options)
    low = options.precision == "bf16"
    if options.kind == "fsdp":
        model = run_model = shard(model, low)
        cast = contextlib.nullcontext
    else:
        run_model = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=True, static_graph=True
        )
        cast = lambda: torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    torch.manual_seed(2 + rank)
    ids = torch.randint(options.vocab_size, (options.batch, options.seq_len + 1))

    def step():
        with cast():
            logits = run_model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, options.vocab_size), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=options.kind == "fsdp")  # DDP's gradients live in its buckets
        return loss.item()

    return step


def work(rank, options, store, question, answer):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    step = make_step(options, rank)
    while (steps := question.recv()) > 0:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        dist.barrier()
        answer.send(dict(seconds=time.perf_counter() - begin, loss=loss))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(num_layers=4, hidden_size=256, num_heads=4, seq_len=256, vocab_size=256, batch=8, ranks=2).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--kind", choices=["ddp", "fsdp"], default="ddp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        ends, workers = [], []
        for rank in range(options.ranks):
            question_out, question_in = context.Pipe(duplex=False)
            answer_out, answer_in = context.Pipe(duplex=False)
            worker = context.Process(target=work, args=(rank, options, os.path.join(folder, "store"), question_out, answer_in))
            worker.start()
            question_out.close()
            answer_in.close()
            ends.append((question_in, answer_out))
            workers.append(worker)

        def ask(steps):
            for question, _ in ends:
                question.send(steps)

        for line in sys.stdin:
            words = line.split()
            if not words or words[0] == "quit":
                break
            ask(int(words[1]))
            answers = [answer.recv() for _, answer in ends]
            seconds = max(a["seconds"] for a in answers)
            print(json.dumps(dict(seconds=seconds, loss=sum(a["loss"] for a in answers) / len(answers))), flush=True)
        ask(0)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
