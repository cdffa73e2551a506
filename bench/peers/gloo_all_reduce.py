"""Gloo's all_reduce between processes of this machine: answers {"seconds": ...} to each line with a number of bytes."""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, ranks, store, sizes, answers):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    while True:
        size = torch.tensor([sizes.get() if rank == 0 else 0])
        dist.broadcast(size, 0)
        if int(size) == 0:
            return
        values = torch.zeros(int(size) // 4)

        def batch(calls):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(values)
            took = torch.tensor([(time.perf_counter() - begin) / calls], dtype=torch.float64)
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            return float(took)

        calls = max(3, min(500, int(0.2 / batch(3))))
        times = [batch(calls) for _ in range(7)]
        if rank == 0:
            answers.put(statistics.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    context = mp.get_context("spawn")
    sizes, answers = context.Queue(), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=rank_main, args=(rank, ranks, os.path.join(folder, "store"), sizes, answers))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for line in sys.stdin:
            sizes.put(int(line))
            print(json.dumps({"seconds": answers.get()}), flush=True)
        sizes.put(0)
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
