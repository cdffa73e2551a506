"""The small image models trained on scikit-learn's digits in plain PyTorch, as `trireme graph run --images` trains them.

  python3 bench/peers/digits.py tests/fixtures/digits.txt --model resnet50 --steps 450 --lr 0.05 --momentum 0.9

The same layers, every number of channels divided by --width; images scaled bilinearly to 64 x 64 and repeated over three
channels; every fifth image is for testing; SGD in fp32. PyTorch's own initialisation and order of samples.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inner, width, stride, zero_gamma):
        super().__init__()
        outer = 4 * width
        self.way = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.skip = nn.Identity()
        if stride > 1 or inner != outer:
            self.skip = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        if zero_gamma:
            nn.init.zeros_(self.way[-1].weight)

    def forward(self, x):
        return F.relu(self.way(x) + self.skip(x))


def resnet50(width, classes, zero_gamma):
    layers = [nn.Conv2d(3, 64 // width, 7, 2, 3, bias=False), nn.BatchNorm2d(64 // width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = 64 // width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = (64 << stage) // width
        for block in range(blocks):
            layers.append(Bottleneck(inner, planes, 2 if stage > 0 and block == 0 else 1, zero_gamma))
            inner = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def vgg16(width, classes, _):
    layers, inner = [], 3
    for channels in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if channels == 0:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers += [nn.Conv2d(inner, channels // width, 3, 1, 1), nn.ReLU()]
        inner = channels // width
    hidden = 4096 // width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inner * 4, hidden), nn.ReLU(), nn.Dropout(),
                         nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, classes))


def images(path):
    with open(path) as file:
        lines = [line.split() for line in file if line.strip() and line[0] != "#"]
    rows = torch.tensor([[float(int(c, 36)) for c in pixels] + [float(label)] for pixels, label in lines])
    pixels = rows[:, :-1].reshape(-1, 1, 8, 8) / 16 * 2 - 1
    pixels = F.interpolate(pixels, (64, 64), mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    is_test = torch.arange(len(rows)) % 5 == 4
    labels = rows[:, -1].long()
    return pixels[~is_test], labels[~is_test], pixels[is_test], labels[is_test]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--model", choices=("resnet50", "vgg16"), default="resnet50")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0)
    parser.add_argument("--weight-decay", type=float, default=0)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--warmup-from", type=float, default=0)
    parser.add_argument("--decay-at", default="")
    parser.add_argument("--zero-gamma", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    x, y, test_x, test_y = images(options.file)
    model = (resnet50 if options.model == "resnet50" else vgg16)(options.width, 16, options.zero_gamma)
    norms = [p for module in model.modules() if isinstance(module, nn.BatchNorm2d) for p in module.parameters()]
    rest = [p for p in model.parameters() if not any(p is norm for norm in norms)]
    sgd = torch.optim.SGD([{"params": rest, "weight_decay": options.weight_decay}, {"params": norms, "weight_decay": 0}],
                          lr=options.lr, momentum=options.momentum)
    decays = [int(step) for step in options.decay_at.split(",") if step]
    order, begin = torch.empty(0, dtype=torch.long), time.perf_counter()
    for step in range(options.steps):
        if len(order) < options.batch:
            order = torch.randperm(len(x))
        batch, order = order[:options.batch], order[options.batch:]
        rate = options.lr * 0.1 ** sum(at <= step for at in decays)
        if step < options.warmup:
            rate = options.warmup_from + (options.lr - options.warmup_from) * step / options.warmup
        for group in sgd.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(model(x[batch]), y[batch])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).sum().item()
    print(f"PyTorch {torch.__version__} {options.model} seed {options.seed}: {right} of {len(test_y)} right "
          f"({100 * right / len(test_y):.2f} %), last loss {loss.item():.4f}, {1e3 * seconds / options.steps:.0f} ms a step")


if __name__ == "__main__":
    main()
