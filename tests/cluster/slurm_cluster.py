"""A real SLURM of several nodes on one machine: munged, slurmctld and a slurmd a node, in a folder of its own.

Nodes share the machine's processes and files; their GPUs are character devices that do nothing. Needs root, and the
packages that `install.sh` installs. Everything is stopped by the process numbers that the daemons wrote.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

CONFIG = """
ClusterName=gatebench
SlurmctldHost={host}
SlurmctldPort={control_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=300
SlurmdTimeout=15
SlurmctldTimeout=30
MaxArraySize={max_array_size}
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=DEFAULT CPUs={cpus} RealMemory=2000 Gres=gpu:{gpus} State=UNKNOWN
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}]
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
"""
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scontrol")


def why_not() -> str | None:
    """Return why no cluster can be started here; None where one can."""
    if os.geteuid() != 0:
        return "starting SLURM's daemons needs root"
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    return f"{', '.join(missing)} not found: run tests/cluster/install.sh" if missing else None


@dataclass
class SlurmCluster:
    """`folder` holds its state and logs; `SLURM_CONF` must name `config` for every command and daemon."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    gpus: int = 2
    max_array_size: int = 1001

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config)}

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle."""
        for name in ("state", "log", "run", "munge", "gpu", *(f"spool/n{n}" for n in self._numbers())):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._write_config()
        munge = ["--force", "--num-threads=2", f"--key-file={key}", f"--socket={self.folder}/run/munge.sock"]
        munge += [f"--pid-file={self._pid_file('munged')}", f"--log-file={self.folder}/log/munged.log"]
        self._run("munged", *munge, f"--seed-file={self.folder}/munge/seed")
        self._run("slurmctld", "-f", str(self.config), "-L", f"{self.folder}/log/slurmctld.log", "-i")
        for n in self._numbers():
            self.start_node(f"n{n}")
        self._wait_for_nodes()

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        self._run("slurmd", "-f", str(self.config), "-N", node, "-L", f"{self.folder}/log/slurmd.{node}.log")

    def lose_node(self, node: str) -> None:
        """Kill the daemon of one node; what runs there goes on, as on a machine whose network is gone."""
        os.kill(self._pid(f"slurmd.{node}"), signal.SIGKILL)

    def stop(self) -> None:
        """Cancel all jobs and stop every daemon."""
        subprocess.run(["scancel", "-u", "root"], env=self.env, capture_output=True, timeout=30)
        deadline = time.monotonic() + 30
        while self.squeue("-t", "all", "-o", "%T").count("COMPLETING") and time.monotonic() < deadline:
            time.sleep(0.2)
        for name in (*(f"slurmd.n{n}" for n in self._numbers()), "slurmctld", "munged"):
            self._stop(name)

    def squeue(self, *options: str) -> list[str]:
        """Return the lines of squeue."""
        done = subprocess.run(["squeue", "-h", *options], env=self.env, capture_output=True, text=True, timeout=30)
        return done.stdout.split()

    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _write_config(self) -> None:
        host = socket.gethostname().partition(".")[0]
        first = _free_ports(self.nodes + 1)
        ports = f"{first + 1}-{first + self.nodes}" if self.nodes > 1 else str(first + 1)
        text = CONFIG.format(
            folder=self.folder,
            host=host,
            control_port=first,
            ports=ports,
            nodes=self.nodes,
            cpus=self.cpus,
            gpus=self.gpus,
            max_array_size=self.max_array_size,
        )
        self.config.write_text(text, encoding="utf-8")
        lines = []
        for n in self._numbers():
            for g in range(self.gpus):
                os.mknod(self.folder / "gpu" / f"n{n}gpu{g}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
            lines.append(f"NodeName=n{n} Name=gpu File={self.folder}/gpu/n{n}gpu[0-{self.gpus - 1}]\n")
        (self.folder / "gres.conf").write_text("".join(lines), encoding="utf-8")

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            done = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], env=self.env, capture_output=True, text=True)
            if len({line for line in done.stdout.splitlines() if line.endswith(" idle")}) == self.nodes:
                return
            time.sleep(0.2)
        raise RuntimeError(f"SLURM did not come up: {done.stdout}{done.stderr}; logs in {self.folder}/log")

    def _run(self, *command: str) -> None:
        # the daemons go to the background and must not keep the test's pipes open
        log = self.folder / "log" / "start.log"
        with open(log, "ab") as output:
            done = subprocess.run(command, env=self.env, stdout=output, stderr=output, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{log.read_text()}")

    def _pid_file(self, daemon: str) -> Path:
        return self.folder / "run" / f"{daemon}.pid"

    def _pid(self, daemon: str) -> int:
        return int(self._pid_file(daemon).read_text())

    def _stop(self, daemon: str) -> None:
        try:
            pid = self._pid(daemon)
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError):
            return
        deadline = time.monotonic() + 8
        while _alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_ports(n: int) -> int:
    """Return the first of `n` neighbouring ports that nobody listens on."""
    for first in range(17000, 20000, 20):
        with_listener = False
        for port in range(first, first + n):
            with socket.socket() as probe:
                with_listener = with_listener or probe.connect_ex(("127.0.0.1", port)) == 0
        if not with_listener:
            return first
    raise RuntimeError("no free ports from 17000 to 20000")
