"""The system calls that a program in a sandbox may make, as a compiled filter (seccomp).

An allow list: what is not on it does not exist (`ENOSYS`), and so also what later kernels bring. Beside what only
privileged programs need it leaves out what would hold memory that no limit of a sandbox counts (memfd, System V and
POSIX shared memory and queues, anonymous shared mappings), what reaches other processes (ptrace, process_vm_*,
pidfd_getfd, limits and priorities of others), all sockets but local ones (vsock is in no namespace), and large
surfaces: io_uring, bpf, keyrings, userfaultfd, perf, new namespaces.

libseccomp compiles it for this machine's architecture.
"""

from __future__ import annotations

import ctypes
import os
import socket
from functools import cache

from driftline.errors import SandboxUnavailable

LIBRARY = "libseccomp.so.2"
REMEDY = "install libseccomp (Debian: apt-get install libseccomp2)"

ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 sendfile copy_file_range splice tee lseek
open openat openat2 creat close close_range dup dup2 dup3 fcntl flock ioctl pipe pipe2
stat fstat lstat newfstatat fstatat64 statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat
symlink symlinkat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat umask truncate ftruncate fallocate
fadvise64 readahead fsync fdatasync sync_file_range utime utimes utimensat futimesat
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
munmap mprotect mremap madvise brk msync mincore membarrier
fork vfork execve execveat exit exit_group wait4 waitid
getpid getppid gettid getpgid getpgrp setpgid getsid setsid
getuid geteuid getgid getegid getresuid getresgid getgroups capget
kill tkill tgkill pidfd_open pidfd_send_signal rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause restart_syscall
futex futex_waitv set_tid_address set_robust_list get_robust_list rseq arch_prctl prctl
getrlimit setrlimit getrusage times sysinfo uname getcpu getrandom getpriority
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
sched_rr_get_interval
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time alarm getitimer setitimer
timer_create timer_settime timer_gettime timer_getoverrun timer_delete
connect bind listen accept accept4 getsockname getpeername sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown
setsockopt getsockopt
"""

ALLOW, NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | 38
EQUAL, MASKED_EQUAL = 4, 7
"""libseccomp's `SCMP_CMP_EQ` and `SCMP_CMP_MASKED_EQ`."""
NEW_NAMESPACES = 0x7E020080
"""All of clone's `CLONE_NEW*`."""
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20
OPTIMIZE, BINARY_TREE = 8, 2

CONDITIONAL: tuple[tuple[str, tuple[tuple[int, int, int, int], ...]], ...] = (
    ("clone", ((0, MASKED_EQUAL, NEW_NAMESPACES, 0),)),
    *(
        (call, ((3, MASKED_EQUAL, MAP_SHARED | MAP_ANONYMOUS, flags),))
        for call in ("mmap",)
        for flags in (0, MAP_SHARED, MAP_ANONYMOUS)
    ),
    ("socket", ((0, EQUAL, socket.AF_UNIX, 0),)),
    ("socketpair", ((0, EQUAL, socket.AF_UNIX, 0),)),
    ("prlimit64", ((0, EQUAL, 0, 0),)),
    ("sched_setaffinity", ((0, EQUAL, 0, 0),)),
    ("setpriority", ((0, EQUAL, 0, 0), (1, EQUAL, 0, 0))),
)
"""Calls that are allowed where all of the conditions hold: argument, comparison, and its two operands."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@cache
def compiled_filter() -> bytes:
    """The filter as the kernel's BPF program, for bubblewrap's `--seccomp`.

    Raises:
        SandboxUnavailable: There is no libseccomp, or it cannot make the filter.
    """
    library = _library()
    context = library.seccomp_init(ctypes.c_uint32(NO_SUCH_CALL))
    if not context:
        raise SandboxUnavailable(f"libseccomp makes no filter: {REMEDY}")
    context = ctypes.c_void_p(context)
    try:
        library.seccomp_attr_set(context, OPTIMIZE, BINARY_TREE)
        for name in ALLOWED.split():
            _allow(library, context, name, ())
        for name, conditions in CONDITIONAL:
            _allow(library, context, name, conditions)
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise SandboxUnavailable(f"{LIBRARY} is missing ({error}): {REMEDY}") from None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_release.restype = None
    return library


def _allow(
    library: ctypes.CDLL, context: ctypes.c_void_p, name: str, conditions: tuple[tuple[int, int, int, int], ...]
) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:
        # A name that this architecture, or this version of libseccomp, does not have.
        return
    array = (_Comparison * len(conditions))(*(_Comparison(*one) for one in conditions))
    code = library.seccomp_rule_add_array(context, ctypes.c_uint32(ALLOW), number, len(conditions), array)
    if code:
        raise SandboxUnavailable(f"libseccomp takes no rule for {name} ({os.strerror(-code)}): {REMEDY}")


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    descriptor = os.memfd_create("filter")
    with open(descriptor, "w+b") as file:  # noqa: PTH123 (a descriptor)
        code = library.seccomp_export_bpf(context, descriptor)
        if code:
            raise SandboxUnavailable(f"libseccomp exports no filter ({os.strerror(-code)}): {REMEDY}")
        file.seek(0)
        return file.read()
