"""A peer of bench/checkpoint_torch: saves and loads the same bytes with torch, one answer of JSON a question.

torchrun is not needed: with several ranks this process starts them itself, once, and they stay.
"""
import json
import os
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp


def tensors_of(total, tensors, rank, ranks):
    each = total // tensors // 4 // ranks
    return {f"t{i}": torch.full((each,), float(i + rank)) for i in range(tensors)}


def saver(rank, question, questions, answers):
    """A rank: for each line asked, one save between barriers."""
    ranks, folder = question["ranks"], question["folder"]
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(question["port"]))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mine = tensors_of(question["bytes"], question["tensors"], rank, ranks)
    state = {f"r{rank}.{name}": tensor for name, tensor in mine.items()}
    while questions.get():
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()
        begin = time.perf_counter()
        dcp.save(state, checkpoint_id=folder)  # its writer syncs files by itself
        dist.barrier()
        if rank == 0:
            answers.put(time.perf_counter() - begin)
    dist.destroy_process_group()


class Savers:
    def __init__(self, question):
        context = mp.get_context("spawn")
        self.questions = [context.SimpleQueue() for _ in range(question["ranks"])]
        self.answers = context.SimpleQueue()
        self.ranks = [
            context.Process(target=saver, args=(rank, question, self.questions[rank], self.answers), daemon=True)
            for rank in range(question["ranks"])
        ]
        for rank in self.ranks:
            rank.start()
        self.ask(True)  # the first is slower

    def ask(self, what):
        for queue in self.questions:
            queue.put(what)
        return self.answers.get() if what else None


def load_plain(question):
    path = question["folder"] + "-plain.pt"
    if not os.path.exists(path):
        torch.save(tensors_of(question["bytes"], question["tensors"], 0, 1), path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    torch.load(path, mmap=False)  # into the page cache
    begin = time.perf_counter()
    state = torch.load(path, mmap=False)
    seconds = time.perf_counter() - begin
    del state
    return seconds


def main():
    torch.set_num_threads(1)
    savers = None
    for line in sys.stdin:
        question = json.loads(line)
        if question["what"] == "save":
            savers = savers or Savers(question)
            seconds = savers.ask(True)
        else:
            seconds = load_plain(question)
        print(json.dumps({"seconds": seconds, "version": torch.__version__}), flush=True)
    if savers:
        savers.ask(False)


if __name__ == "__main__":
    main()
