"""What `gatebench.evaluation.sandbox` starts: confines itself, then runs the program that it reads from stdin.

    python -P -s -S sandbox_child.py CPU_SECONDS MEMORY_BYTES < program

The report goes to the file that was stdout: a line that names the layer that holds, then "passed" or why not. The
program's own output goes nowhere.

This file imports nothing of gatebench, nor anything that is not in the standard library.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterator

SECCOMP = "seccomp"
AUDIT_HOOK = "audit hook"
REPORT_BYTES = 4096

# The system calls that a program needs that only computes, sleeps and reads files. Every other one fails with EPERM.
# Numbers: asm/unistd_64.h on x86-64, asm-generic/unistd.h on aarch64 (None: the call does not exist there).
# fmt: off
ALLOWED = {
    # memory, time, signals of its own
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "futex": (202, 98), "sched_yield": (24, 124), "getrandom": (318, 278),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "times": (100, 153), "getitimer": (36, 102), "setitimer": (38, 103),
    "alarm": (37, None), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    # open files and what is known of others
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "pread64": (17, 67),
    "readv": (19, 65), "writev": (20, 66), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "getcwd": (79, 17),
    "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    # who and where it is
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "uname": (63, 160), "getrusage": (98, 165),
    "sysinfo": (99, 179), "sched_getaffinity": (204, 123),
}
# fmt: on

# Calls that are allowed where (argument & mask) is one of the values, as (numbers, argument index, mask, values).
OPENS_TO_CHANGE = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
ALLOWED_IF = {
    "open": ((2, None), 1, OPENS_TO_CHANGE, (0,)),
    "openat": ((257, 56), 2, OPENS_TO_CHANGE, (0,)),
    "ioctl": ((16, 29), 1, 0xFFFFFFFF, (0x5401, 0x5450, 0x5451)),  # TCGETS (isatty), FIONCLEX, FIOCLEX
    "fcntl": ((72, 25), 1, 0xFFFFFFFF, (0, 1, 2, 3, 1030)),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
}
# machine: (AUDIT_ARCH_* of linux/audit.h, column of the numbers above)
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# linux/bpf_common.h, linux/seccomp.h, linux/prctl.h
LOAD, JUMP_IF_EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW, FAIL_WITH_EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2

REFUSED_EVENTS = (
    *("socket.", "subprocess.", "shutil.", "tempfile.", "ctypes.", "_winapi.", "winreg.", "mmap.", "fcntl."),
    *("ftplib.", "smtplib.", "urllib.", "resource.", "pty.", "syslog.", "webbrowser."),
)
HARMLESS_OS_EVENTS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr")


def filter_program(audit_arch: int, column: int) -> Iterator[bytes]:
    """Yield the instructions (struct sock_filter) of the filter: an allow-list, everything else is EPERM."""

    def instruction(code: int, value: int, skip_if: int = 0, skip_if_not: int = 0) -> bytes:
        return struct.pack("=HBBI", code, skip_if, skip_if_not, value)

    yield instruction(LOAD, ARCHITECTURE_AT)
    yield instruction(JUMP_IF_EQUAL, audit_arch, 1, 0)
    yield instruction(RETURN, KILL)
    yield instruction(LOAD, NUMBER_AT)
    for numbers in ALLOWED.values():
        number = numbers[column]
        if number is not None:
            yield instruction(JUMP_IF_EQUAL, number, 0, 1)
            yield instruction(RETURN, ALLOW)
    for numbers, argument, mask, values in ALLOWED_IF.values():
        number = numbers[column]
        if number is not None:
            yield instruction(JUMP_IF_EQUAL, number, 0, 3 + 2 * len(values))
            yield instruction(LOAD, ARGUMENTS_AT + 8 * argument)  # the low half: these arguments are 32 bits wide
            yield instruction(AND, mask)
            for value in values:
                yield instruction(JUMP_IF_EQUAL, value, 0, 1)
                yield instruction(RETURN, ALLOW)
            yield instruction(RETURN, FAIL_WITH_EPERM)
    yield instruction(RETURN, FAIL_WITH_EPERM)


def install_seccomp() -> bool:
    """Confine this process to the allow-list for good, and let it die with its parent; say whether that worked."""
    architecture = ARCHITECTURES.get(platform.machine()) if sys.platform == "linux" else None
    if architecture is None or struct.calcsize("P") != 8:
        return False

    class Program(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    instructions = list(filter_program(*architecture))
    program = Program(len(instructions), b"".join(instructions))
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0) == 0)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook: refuse what changes a file, opens a socket or touches a process. No security boundary."""
    if event == "open":
        flags = arguments[2]
        if not isinstance(flags, int) or not flags & OPENS_TO_CHANGE:
            return
    elif event.startswith("os."):
        if event in HARMLESS_OS_EVENTS:
            return
    elif not event.startswith(REFUSED_EVENTS):
        return
    raise PermissionError(f"{event} is refused in the sandbox")


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits on CPU time, address space, files and processes; what the system does not know is left out."""
    for name, value in {
        "RLIMIT_CPU": cpu_seconds,
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_FSIZE": REPORT_BYTES,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 1,
    }.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):
            continue


def verdict(program: bytes) -> str:
    """Run the program and return "passed", or the type and message of what it raised."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    return "passed"


def main() -> None:
    """Read the program, hide the report from it, confine this process, run the program and report."""
    program = sys.stdin.buffer.read()
    report = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    limit(int(sys.argv[1]), int(sys.argv[2]))
    layer = SECCOMP if install_seccomp() else AUDIT_HOOK
    sys.argv = [""]
    os.write(report, f"{layer}\n".encode())
    if layer == AUDIT_HOOK:
        sys.addaudithook(refuse)
    os.write(report, verdict(program).encode(errors="replace")[: REPORT_BYTES // 2])
    os._exit(0)


if __name__ == "__main__":
    main()
