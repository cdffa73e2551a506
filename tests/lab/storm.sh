#!/usr/bin/env bash
# storm.sh PROGRAM KILLS: an elastic run on the four nodes of a Slurm cluster in namespaces (slurm_cluster.sh). Members are killed,
# links of nodes go down under members that live, new members join. The run never hangs, counts every step once, and has the bits
# of its worlds one by one.
set -eu
[ $# -gt 1 ] || { echo "skipped: built without UCX (Debian: libucx-dev, then configure again)"; exit 77; }
program=$(realpath "$1") here=$(dirname "$(realpath "$0")")
work=${LAB_FOLDER:-}
if [ -z "$work" ]; then
  work=$(mktemp -d /var/tmp/trireme-lab.XXXXXX)
  trap 'rm -rf --one-file-system "$work"' EXIT
fi
case $program in /tmp/*) LAB_KEEP=/tmp/$(cut -d/ -f3 <<<"$program") && export LAB_KEEP ;; esac
bash "$here/slurm_cluster.sh" "$work" bash "$here/storm_in_lab.sh" "$program" "$2"
