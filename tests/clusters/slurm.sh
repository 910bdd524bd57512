#!/usr/bin/env bash
# A SLURM of two nodes on this machine, each with two pretended GPUs: tests/clusters/slurm.sh start | stop | status
# Needs root and Debian's packages: apt-get install munge slurmctld slurmd slurm-client
set -euo pipefail
folder=${SLURM_TEST_FOLDER:-/tmp/workbook-slurm}
export SLURM_CONF=$folder/slurm.conf

write_configuration() {
  mkdir -p "$folder"/{state,spool-n1,spool-n2,log} /run/munge
  touch "$folder"/gpu{0,1}
  cores=$(nproc)
  memory=$(awk '/MemTotal/ {print int($2 / 1024 / 2)}' /proc/meminfo)
  cat > "$folder/slurm.conf" <<EOF
ClusterName=workbook
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort=16817
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/log/completed.txt
ReturnToService=2
KillWait=5
MinJobAge=3600
GresTypes=gpu
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=17001 CPUs=$cores RealMemory=$memory Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=17002 CPUs=$cores RealMemory=$memory Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
EOF
  printf 'NodeName=n1 Name=gpu File=%s/gpu0\nNodeName=n1 Name=gpu File=%s/gpu1\n' "$folder" "$folder" > "$folder/gres.conf"
  printf 'NodeName=n2 Name=gpu File=%s/gpu0\nNodeName=n2 Name=gpu File=%s/gpu1\n' "$folder" "$folder" >> "$folder/gres.conf"
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=%s/cgroup\n' "$folder" > "$folder/cgroup.conf" # none are used
}

case ${1:-} in
  start)
    write_configuration
    [ -f /etc/munge/munge.key ] || /usr/sbin/mungekey
    chown -R munge: /etc/munge /run/munge /var/lib/munge /var/log/munge
    # Jobs lose SLURM_CONF on their way, so what is looked for by default must be there.
    for name in slurm gres cgroup; do ln -sf "$folder/$name.conf" "/etc/slurm/$name.conf"; done
    pgrep -x munged > /dev/null || su -s /bin/sh munge -c /usr/sbin/munged
    slurmctld -f "$SLURM_CONF"
    for node in n1 n2; do slurmd -f "$SLURM_CONF" -N "$node"; done
    for _ in $(seq 30); do
      if [ "$(sinfo -h -o %t -N | sort -u)" = idle ]; then break; fi
      sleep 1
    done
    sinfo
    echo "export SLURM_CONF=$SLURM_CONF"
    ;;
  stop)
    for pid in "$folder"/*.pid; do [ -f "$pid" ] && kill "$(cat "$pid")" || true; done
    ;;
  status) sinfo && squeue ;;
  *) echo "usage: $0 start | stop | status" >&2; exit 2 ;;
esac
