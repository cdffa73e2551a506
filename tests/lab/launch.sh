#!/usr/bin/env bash
# launch.sh PROGRAM REPOSITORY [TRAINER]: `trireme launch` on a real Slurm cluster of four nodes (slurm_cluster.sh). TRAINER is the
# program that nodes run, PROGRAM itself unless given.
#   1. two ranks on two nodes over MPI and PMIx have the bits of two ranks that are threads
#   2. a job that is signalled as before its time limit saves, is requeued, resumes, and ends with the bits of an undisturbed one
#   3. a job that another one preempts does the same
#   4. a sweep is an array, each run in its own directory
#   5. a name with spaces and quotes, and ranks on nodes reached by a command of one's own (--hosts)
#   6. two ranks without PMIx talk over UCX, with the same bits
#   7. a node that dies at step 20: the job is requeued on others, and ends with the bits of an undisturbed one
set -eu
program=$(realpath "$1") repository=$(realpath "$2") trainer=$(realpath "${3:-$1}")
here=$(dirname "$(realpath "$0")")
work=${LAB_FOLDER:-}
if [ -z "$work" ]; then
  work=$(mktemp -d /var/tmp/trireme-lab.XXXXXX)
  trap 'rm -rf --one-file-system "$work"' EXIT
fi
keep=
for path in "$program" "$repository" "$trainer"; do
  case $path in /tmp/*) keep+=${keep:+:}/tmp/$(cut -d/ -f3 <<<"$path") ;; esac
done
LAB_KEEP=$(tr ':' '\n' <<<"$keep" | sort -u | paste -sd: -)
export LAB_KEEP
bash "$here/slurm_cluster.sh" "$work" bash "$here/launch_in_lab.sh" "$program" "$repository" "$trainer"
