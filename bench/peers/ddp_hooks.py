#!/usr/bin/env python3
"""The peer of bench/compress_peers.sh: the GPT of gpt.py under PyTorch's DistributedDataParallel over Gloo, with one of its communication
hooks. One process a rank, placed by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; rank 0 prints {"seconds": [...]}, a number a step.
"""
import argparse
import json
import os
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F

from gpt import Gpt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hook", choices=["none", "fp16", "bf16", "powersgd"], default="none")
    parser.add_argument("--rank", type=int, default=4, help="of PowerSGD")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = Gpt(SimpleNamespace(num_layers=4, hidden_size=256, num_heads=4, seq_len=options.seq_len, vocab_size=256))
    # With several buckets PowerSGD's hook over Gloo ended with gloo::EnforceNotMet or a closed connection.
    one_bucket = options.hook == "powersgd"
    if one_bucket:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024 if one_bucket else 25)
    if options.hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.hook == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif options.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=options.rank, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(256, (options.batch, options.seq_len + 1), generator=torch.Generator().manual_seed(dist.get_rank()))
    seconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        loss = F.cross_entropy(ddp(ids[:, :-1]).view(-1, 256), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    dist.barrier()  # who ends first takes the other's last exchange with it
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds, "loss": loss.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
