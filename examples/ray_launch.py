"""Starts a Trireme run from Ray: one actor a node, each starts that node's ranks with `trireme launch --node-rank`.

    python examples/ray_launch.py recipes/tiny.toml --nodes 2 --ranks-per-node 4 --out /shared/runs/tiny

Ray places the actors (a placement group, STRICT_SPREAD: one on each node) and says where the first one is; ranks talk to each
other without it, and let in who knows a token that is drawn here. The run's directory must lie on a file system that all nodes share.
"""
import argparse
import os
import secrets
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Node:
    """The ranks of one node, as a child process of its actor."""

    def address(self):
        return ray.util.get_node_ip_address()

    def run(self, words, token):
        return subprocess.run(words, env={**os.environ, "TRIREME_TOKEN": token}, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--gpus", action="store_true", help="ask Ray for a GPU for each rank")
    parser.add_argument("--out", required=True)
    parser.add_argument("--program", default="trireme")
    parser.add_argument("--restarts", type=int, default=3, help="whole runs that are started again from their checkpoint")
    options, more = parser.parse_known_args()  # what is left goes to trireme launch: --set ...

    ray.init()
    bundle = {"GPU" if options.gpus else "CPU": options.ranks_per_node}
    group = placement_group([bundle] * options.nodes, strategy="STRICT_SPREAD" if options.nodes > 1 else "PACK")
    ray.get(group.ready())
    for _ in range(options.restarts + 1):
        strategies = [PlacementGroupSchedulingStrategy(group, i) for i in range(options.nodes)]
        need = {"num_gpus": options.ranks_per_node} if options.gpus else {"num_cpus": options.ranks_per_node}
        nodes = [Node.options(scheduling_strategy=one, **need).remote() for one in strategies]
        master = ray.get(nodes[0].address.remote())
        words = [options.program, "launch", options.recipe, "--out", options.out, "--resume",
                 "--ranks", str(options.nodes * options.ranks_per_node), "--nodes", str(options.nodes),
                 "--ranks-per-node", str(options.ranks_per_node), "--master-addr", master, *more]
        token = secrets.token_hex(32)
        runs = [node.run.remote([*words, "--node-rank", str(i)], token) for i, node in enumerate(nodes)]
        try:
            statuses = ray.get(runs)
        except ray.exceptions.RayActorError as error:  # a node is gone; the others end by themselves
            print(f"a node was lost: {error}", file=sys.stderr)
            statuses = [1]
        for node in nodes:
            ray.kill(node)
        if max(statuses) in (0, 2, 130):  # finished; a wrong recipe, which stays wrong; stopped and saved
            return max(statuses)
    return 1


if __name__ == "__main__":
    sys.exit(main())
