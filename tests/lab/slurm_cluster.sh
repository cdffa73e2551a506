#!/usr/bin/env bash
# slurm_cluster.sh FOLDER COMMAND...: a Slurm cluster of four nodes on this machine, for as long as COMMAND runs.
#
# Everything happens in an overlay over / whose changes go to FOLDER, and in namespaces: ctl, the controller, where COMMAND runs,
# and nodes n1 to n4, each with a network, host name, /tmp and /sys of its own, joined by a bridge. Nothing is installed, changed
# or left running outside. Slurm and munge are those of this machine; with LAB_INSTALL=yes they are installed into the overlay
# (Debian's packages slurmctld, slurmd, slurm-client, munge), once for each FOLDER.
#   LAB_KEEP   paths below /tmp that nodes are to see all the same, separated by ':'
#   LAB_RATE   rate of a node's link in the words of tc; default 1gbit
# In COMMAND: $LAB/node1 holds the process of n1's slurmd; logs are $LAB/*.log. Partitions: main, and low, which main preempts.
# Exit status: COMMAND's; 77 with a sentence where this cannot be (not root, no namespaces, no Slurm).
set -eu
skip() { echo "slurm_cluster: $*; skipped"; exit 77; }
[ $# -ge 2 ] || { echo "use: slurm_cluster.sh FOLDER COMMAND..." >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "namespaces and an overlay need root"
unshare --net --mount --pid --fork true 2>/dev/null || skip "this system refuses new namespaces"
mkdir -p "$1"
folder=$(realpath "$1")
shift
mkdir -p "$folder"/changes "$folder"/work "$folder"/root
# The package has links to alternatives, which lead nowhere from outside the overlay.
if [ "${LAB_INSTALL:-}" != yes ] && [ ! -L "$folder/changes/usr/sbin/slurmctld" ] && ! command -v slurmctld >/dev/null; then
  skip "Slurm is not installed (LAB_INSTALL=yes puts it into $folder)"
fi

printf '%q ' "$@" >"$folder/command"

# The controller's side: daemons, nodes, the command.
cat >"$folder/controller" <<'END'
export LAB=/var/tmp/lab
rm -rf $LAB && mkdir -p $LAB/state /run/munge && chown munge /run/munge && chmod 755 /run/munge
{
  printf '%s\n' ClusterName=lab 'SlurmctldHost=ctl(10.79.0.1)' SlurmUser=root SlurmdUser=root TaskPlugin=task/none MpiDefault=none \
    ProctrackType=proctrack/linuxproc SelectType=select/cons_tres SelectTypeParameters=CR_Core ReturnToService=2 SlurmdTimeout=30 \
    KillWait=5 PreemptType=preempt/partition_prio PreemptMode=REQUEUE SchedulerParameters=sched_interval=1 \
    SlurmdParameters=config_overrides StateSaveLocation=$LAB/state SlurmdSpoolDir=$LAB/spool.%n SlurmctldPidFile=$LAB/ctl.pid \
    SlurmdPidFile=$LAB/%n.pid SlurmctldLogFile=$LAB/ctl.log SlurmdLogFile=$LAB/%n.log
  for i in 1 2 3 4; do echo "NodeName=n$i NodeHostName=n$i NodeAddr=10.79.0.1$i CPUs=2 RealMemory=2000"; done
  echo 'PartitionName=main Nodes=n[1-4] Default=YES PriorityTier=10'
  echo 'PartitionName=low Nodes=n[1-4] PriorityTier=1'
} >/etc/slurm/slurm.conf
echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf  # slurmd of this version wants one, whatever follows processes
su -s /bin/sh munge -c munged
sleep 0.5
slurmctld -i 2>/dev/null
for i in 1 2 3 4; do
  mkdir -p $LAB/spool.n$i $LAB/tmp.n$i
  ip link add to-n$i type veth peer name eth-n$i
  ip link set to-n$i master lab up
  # PMIx keeps its files in /tmp and takes another node's for leftovers of its own; sysfs shows the interfaces of whoever mounts it.
  unshare --net --mount --uts sh -c "
    echo \$\$ >$LAB/node$i
    hostname n$i
    while [ ! -e $LAB/linked$i ]; do sleep 0.1; done
    mount --rbind /sys/fs/cgroup /mnt && mount -t sysfs none /sys && mount --rbind /mnt /sys/fs/cgroup && umount -l /mnt
    for kept in $(printf '%s' "$LAB_KEEP" | tr ':' ' '); do mkdir -p $LAB/tmp.n$i/\${kept#/tmp/} && mount --rbind \$kept $LAB/tmp.n$i/\${kept#/tmp/}; done
    mount --rbind $LAB/tmp.n$i /tmp
    exec slurmd -D -N n$i" >/dev/null 2>&1 &
  while [ ! -s $LAB/node$i ]; do sleep 0.1; done
  node=$(cat $LAB/node$i)
  ip link set eth-n$i netns $node
  nsenter --target $node --net sh -c "ip link set lo up; ip addr add 10.79.0.1$i/24 dev eth-n$i; ip link set eth-n$i up
    tc qdisc add dev eth-n$i root tbf rate ${LAB_RATE:-1gbit} burst 256kb latency 50ms" && touch $LAB/linked$i
done
for _ in $(seq 150); do
  [ "$(sinfo -h -p main -t idle -o %D 2>/dev/null)" = 4 ] && break
  sleep 0.2
done
[ "$(sinfo -h -p main -t idle -o %D)" = 4 ] || { echo "slurm_cluster: not all nodes came up"; tail -n 3 $LAB/*.log; exit 1; }
eval "$(cat /root/lab-command)"
END

# The machine's side: the overlay, and the namespaces that all else lives in.
cat >"$folder/machine" <<END
set -e
mount -t overlay overlay -o lowerdir=/,upperdir='$folder/changes',workdir='$folder/work' '$folder/root'
cd '$folder/root'
mount -t proc proc proc
mount --bind /dev dev
mount --rbind /sys sys
if [ ! -L usr/sbin/slurmctld ] && [ ! -x usr/sbin/slurmctld ]; then
  printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d && chmod +x usr/sbin/policy-rc.d  # installing starts no daemon
  chroot . env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends slurmctld slurmd slurm-client munge \
    >'$folder/apt.log' 2>&1 || { tail -n 3 '$folder/apt.log'; echo 'slurm_cluster: Slurm could not be installed; skipped'; exit 77; }
fi
mkdir -p etc/slurm
cp '$folder/controller' root/lab-controller
cp '$folder/command' root/lab-command
{ echo 127.0.0.1 localhost; echo 10.79.0.1 ctl; for i in 1 2 3 4; do echo 10.79.0.1\$i n\$i; done; } >etc/hosts
exec unshare --net --pid --uts --fork --kill-child sh -c 'mount -t proc proc proc; hostname ctl; ip link set lo up
  ip link add lab type bridge; ip addr add 10.79.0.1/24 dev lab; ip link set lab up; exec chroot . bash /root/lab-controller'
END
export LAB_KEEP=${LAB_KEEP:-} LAB_RATE=${LAB_RATE:-1gbit}
# In a process group of its own: whatever ends this script ends the cluster with it.
set -m
unshare --mount --propagation private bash "$folder/machine" </dev/null &
cluster=$!
trap 'kill -KILL -- -$cluster 2>/dev/null; exit 143' TERM INT
wait $cluster
