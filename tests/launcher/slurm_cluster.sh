#!/bin/bash
# A Slurm cluster on this machine, from Debian's packages: two nodes, n1 and n2, with their own addresses.
#     slurm_cluster.sh FOLDER COMMAND...     runs a command on it, and ends the cluster with the command
# Exit code 77: this machine cannot make a cluster.
# It lives in namespaces: it uses no port, name, file or process of the machine, and leaves none behind.
set -e
apart=(unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc)
if [ "$IN_NAMESPACE" != yes ]; then
  "${apart[@]}" true || exit 77
  exec env IN_NAMESPACE=yes "${apart[@]}" "$0" "$@"
fi
PATH=$PATH:/usr/sbin:/sbin
D=$1
shift
mkdir -p "$D"/{state,n1,n2}
hostname head
ip link set lo up
for n in 1 2; do ip address add 10.71.0.$n/24 dev lo; done
printf '127.0.0.1 localhost\n10.71.0.1 head n1\n10.71.0.2 n2\n' > "$D/hosts"
mount --bind "$D/hosts" /etc/hosts
head -c 128 /dev/urandom > "$D/munge.key"
chmod 400 "$D/munge.key"
cat > "$D/slurm.conf" << END
ClusterName=ringmaster
SlurmctldHost=head(10.71.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge.socket
CredType=cred/munge
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/%n
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/%n.pid
SlurmctldLogFile=$D/slurmctld.log
SlurmdLogFile=$D/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=head NodeAddr=10.71.0.1 Port=7001 CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname=head NodeAddr=10.71.0.2 Port=7002 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF=$D/slurm.conf
munged --foreground --force --socket="$D/munge.socket" --key-file="$D/munge.key" --pid-file="$D/munge.pid" \
    --seed-file="$D/munge.seed" > "$D/munge.log" 2>&1 &
for _ in $(seq 100); do [ -S "$D/munge.socket" ] || sleep 0.05; done
slurmctld -D -c > "$D/slurmctld.out" 2>&1 &
for n in n1 n2; do slurmd -D -c -N $n > "$D/$n.out" 2>&1 & done
for _ in $(seq 200); do
  if [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = 2 ]; then ready=yes; break; fi
  sleep 0.1
done
if [ "$ready" != yes ]; then
  tail -n 3 "$D"/*.out "$D/munge.log"
  exit 77
fi
set +e
"$@"
