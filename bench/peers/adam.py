#!/usr/bin/env python3
"""The peer of bench/host_adam_torch: torch.optim.AdamW on one thread.

"eager N", "foreach N" and "fused N" lines run N steps of that implementation; the answer is one line of JSON with their seconds.
The parameters are cut into tensors of the size of a layer's matrix, as an optimizer meets them.
"""
import argparse
import json
import sys
import time

import torch


def make(options, **kind):
    sizes = [options.tensor] * (options.parameters // options.tensor)
    if rest := options.parameters % options.tensor:
        sizes.append(rest)
    parameters = [torch.full((size,), 0.5, requires_grad=True) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=16_000_000)
    parser.add_argument("--tensor", type=int, default=1024 * 1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = dict(eager=dict(foreach=False, fused=False), foreach=dict(foreach=True), fused=dict(fused=True))
    optimizers = {}
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        name, steps = words[0], int(words[1])
        if name not in optimizers:
            optimizers[name] = make(options, **kinds[name])
        begin = time.perf_counter()
        for _ in range(steps):
            optimizers[name].step()
        print(json.dumps(dict(seconds=time.perf_counter() - begin)), flush=True)


if __name__ == "__main__":
    main()
