"""One training step of ResNet-50 or of Zaremba's LSTM in PyTorch, as `trireme graph run` times its own.

  python3 bench/peers/graph_step.py resnet50 --batch 256 --device cuda --dtype bf16 --compile
  python3 bench/peers/graph_step.py lstm --batch 20 --device cpu

Forward, backward and plain gradient descent on one batch that stays where it is. bf16: weights and activations of bf16,
master weights of fp32, as in the graph; channels last on a GPU. The LSTM is unrolled by nn.LSTM (cuDNN on a GPU).
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.down = None
        if stride > 1 or inner != 4 * width:
            self.down = nn.Sequential(nn.Conv2d(inner, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, inner = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(inner, width, stride if i == 0 else 1))
                inner = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self, vocab=10000, hidden=1500):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, 2, batch_first=True)
        self.softmax = nn.Linear(hidden, vocab)

    def forward(self, x):
        return self.softmax(self.lstm(self.embedding(x))[0]).flatten(0, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("resnet50", "lstm"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--compile", nargs="?", const="default", default="")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    if options.model == "resnet50":
        model = ResNet50().to(options.device, dtype)
        x = torch.randn(options.batch, 3, options.size, options.size, device=options.device, dtype=dtype)
        labels = torch.randint(1000, (options.batch,), device=options.device)
        if options.device == "cuda":
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    else:
        model = Lstm().to(options.device, dtype)
        x = torch.randint(10000, (options.batch, 35), device=options.device)
        labels = torch.randint(10000, (options.batch * 35,), device=options.device)
    masters = [p.detach().float().clone() for p in model.parameters()] if dtype == torch.bfloat16 else None
    run = torch.compile(model, mode=options.compile) if options.compile else model

    def step():
        loss = F.cross_entropy(run(x).float(), labels)
        loss.backward()
        with torch.no_grad():
            own, gradients = list(model.parameters()), [p.grad for p in model.parameters()]
            if masters:
                torch._foreach_add_(masters, [g.float() for g in gradients], alpha=-0.01)
                torch._foreach_copy_(own, masters)
            else:
                torch._foreach_add_(own, gradients, alpha=-0.01)
        model.zero_grad(set_to_none=True)
        return loss

    for _ in range(5):
        step()
    best = float("inf")
    for _ in range(options.steps):
        if options.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        loss.item()
        if options.device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    how = f"compile {options.compile}" if options.compile else "eager"
    print(f"PyTorch {torch.__version__} {options.model} {options.device} {options.dtype} batch {options.batch} {how}: "
          f"{1e3 * best:.2f} ms a step, {options.batch / best:.1f} samples/s")


if __name__ == "__main__":
    main()
