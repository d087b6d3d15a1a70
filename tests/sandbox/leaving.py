"""Attempts to get out, to see what is outside, to stay, and to fool whoever reads the results."""

from __future__ import annotations

from tests.sandbox.attempt import Attempt, number_of, of

ABSENT_CALLS = """
acct add_key adjtimex bpf capset chroot clock_settime clone3 delete_module fanotify_init finit_module fsconfig
fsmount fsopen fspick get_mempolicy init_module inotify_init1 io_setup io_submit io_uring_enter io_uring_register
io_uring_setup ioperm iopl ioprio_set kcmp kexec_load keyctl landlock_create_ruleset mbind memfd_create memfd_secret
migrate_pages mknod mknodat mlock mlockall modify_ldt mount mount_setattr move_mount move_pages mq_open msgget
msgsnd name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open personality pidfd_getfd pivot_root
pkey_alloc process_madvise process_vm_readv process_vm_writev ptrace quotactl reboot remap_file_pages request_key
sched_setattr sched_setscheduler seccomp semget set_mempolicy setdomainname setfsuid setgid setgroups sethostname
setns setresuid setreuid settimeofday setuid setxattr shmat shmget swapoff swapon syslog umount2 unshare userfaultfd
vhangup vmsplice
"""

SYSTEM_CALLS = [
    Attempt(f"system call: {name}", f"must_not_exist({number_of(name)}, 0, 0, 0, 0, 0)")
    for name in ABSENT_CALLS.split()
    if number_of(name) >= 0
]

FILTERED = of(
    "system call",
    {
        "clone into a user namespace": f"must_not_exist({number_of('clone')}, 0x10000000 | 17, 0, 0, 0, 0)",
        "clone into a mount namespace": f"must_not_exist({number_of('clone')}, 0x00020000 | 17, 0, 0, 0, 0)",
        "clone into a pid namespace": f"must_not_exist({number_of('clone')}, 0x20000000 | 17, 0, 0, 0, 0)",
        "anonymous shared mapping, which no limit counts": "import mmap\nmust_fail(lambda: mmap.mmap(-1, 4096))",
        "anonymous shared mapping, validated": (f"must_not_exist({number_of('mmap')}, 0, 4096, 3, 0x23, -1, 0)"),
        "limits of process 1": f"must_not_exist({number_of('prlimit64')}, 1, 7, 0, 0)",
        "priority of process 1": f"must_not_exist({number_of('setpriority')}, 0, 1, 19)",
        "processors of process 1": "must_fail(lambda: os.sched_setaffinity(1, {0}))",
        "number beyond all": "must_not_exist(100000, 0)",
        "32-bit calls of a 64-bit program": f"must_fail(lambda: call(0x40000000 | {number_of('getpid')}))",
    },
)

HOST_FILES = of(
    "host's files",
    {
        **{
            f"read {path}": f"must_fail(lambda: os.listdir({path!r}) if os.path.isdir({path!r}) else read({path!r}))"
            for path in (
                "/etc/shadow",
                "/etc/hostname",
                "/etc/resolv.conf",
                "/etc/ssh",
                "/home",
                "/var/log",
                "/run",
                "/sys",
                "/opt",
                "/srv",
                "/boot",
                "/media",
                "/dev/kmsg",
                "/dev/mem",
                "/dev/fuse",
                "/dev/kvm",
                "/dev/shm",
                "/dev/ptmx",
                "/dev/tty",
                "/dev/zero",
                "/dev/vda",
                "/dev/sda",
            )
        },
        **{
            f"write {path}": f"must_fail(lambda: write({path!r}))"
            for path in (
                "/x",
                "/etc/x",
                "/etc/passwd",
                "/usr/x",
                "/usr/bin/python3",
                "/usr/local/x",
                "/dev/x",
                "/proc/x",
                "/driftline/supervisor.pyc",
                "/hidden/answer.txt",
                "/box/../x",
            )
        },
        "the secret, by its path": "must_fail(lambda: read(os.environ['SECRET_PATH']))",
        "the secret, through a symbolic link": (
            "os.symlink(os.environ['SECRET_PATH'], 'link')\nmust_fail(lambda: read('link'))"
        ),
        "the secret, through /proc/1/root": "must_fail(lambda: read('/proc/1/root' + os.environ['SECRET_PATH']))",
        "the secret, above the root that /proc names": (
            "above = os.path.join('/proc/self', 'root', '../../..')\n"
            "must_fail(lambda: read(above + os.environ['SECRET_PATH']))"
        ),
        "the secret, by a hard link": "must_fail(lambda: os.link(os.environ['SECRET_PATH'], 'hard'))",
        "the checkout and its hidden tests": "must_fail(lambda: os.listdir(os.environ['CHECKOUT']))",
        **{
            f"hidden tests of a family, {how}": (
                "path = os.environ['CHECKOUT'] + '/environments/repo_repair/modules/roman/hidden_roman.py'\n"
                f"{prepared}\nmust_fail(lambda: read({path}))"
            )
            for how, prepared, path in (
                ("by their path", "", "path"),
                ("through a symbolic link", "os.symlink(path, 'link')", "'link'"),
                ("through a link to their folder", "os.symlink(os.path.dirname(path), 'to')", "'to/hidden_roman.py'"),
                ("through /proc/1/root", "", "'/proc/1/root' + path"),
                ("through /proc/1/cwd", "", "'/proc/1/cwd/' + os.path.relpath(path, '/')"),
            )
        },
        "hidden tests of a family, by their name, outside /usr and /proc": """
            for folder, names, files in os.walk("/"):
                names[:] = [one for one in names if os.path.join(folder, one) not in ("/usr", "/proc", "/root")]
                for one in files:
                    if one.startswith("hidden_") or one.startswith("test_roman"):
                        escaped(os.path.join(folder, one))
        """,
        "the marker in any file outside /usr and /proc": """
            for folder, names, files in os.walk("/"):
                names[:] = [one for one in names if os.path.join(folder, one) not in ("/usr", "/proc", "/root")]
                for one in files:
                    path = os.path.join(folder, one)
                    if path == "/hidden/answer.txt" or not os.path.isfile(path) or path.endswith("main.py"):
                        continue
                    try:
                        if b"the-secret-" + b"marker" in open(path, "rb").read(2**20):
                            escaped(path)
                    except OSError:
                        pass
        """,
        "walk out of the root": """
            os.chdir("/")
            for _ in range(50):
                os.chdir("..")
            if os.path.exists(os.environ["CHECKOUT"]):
                escaped("chdir")
        """,
        "root of a supervisor's open folder": "must_fail(lambda: os.listdir('/proc/1/cwd'))",
        "change a mounted file's rights": "must_fail(lambda: os.chmod('/hidden/answer.txt', 0o777))",
        "remove a mounted file": "must_fail(lambda: os.unlink('/hidden/answer.txt'))",
        "rename over a mounted file": "write('x')\nmust_fail(lambda: os.rename('x', '/hidden/answer.txt'))",
        "own a file of root's": "write('x')\nmust_fail(lambda: os.chown('x', 0, 0))",
        "a set-uid copy of the shell": """
            import shutil
            shutil.copy("/bin/sh", "sh")
            os.chmod("sh", 0o6755)
            out = subprocess.run(["./sh", "-p", "-c", "id -u"], capture_output=True, text=True).stdout.strip()
            if out == "0":
                escaped("root")
        """,
        "execute what process 1 executes": "must_fail(lambda: os.execv('/proc/1/exe', ['x']))",
    },
)

PROC = of(
    "/proc",
    {
        **{
            f"read {path}": f"must_fail(lambda: read({path!r}))"
            for path in (
                "/proc/1/environ",
                "/proc/1/mem",
                "/proc/1/maps",
                "/proc/1/auxv",
                "/proc/1/syscall",
                "/proc/kcore",
                "/proc/1/stack",
                "/proc/kmsg",
                "/proc/kpagecount",
                "/proc/1/smaps",
            )
        },
        **{
            f"write {path}": f"must_fail(lambda: write({path!r}, b'1'))"
            for path in (
                "/proc/sysrq-trigger",
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/hostname",
                "/proc/sys/user/max_user_namespaces",
                "/proc/sys/vm/drop_caches",
                "/proc/sys/vm/overcommit_memory",
                "/proc/sys/kernel/ns_last_pid",
                "/proc/self/uid_map",
                "/proc/1/oom_score_adj",
                "/proc/1/comm",
                "/proc/1/coredump_filter",
                "/proc/1/clear_refs",
                "/proc/sys/fs/binfmt_misc/register",
            )
        },
        "the supervisor's pipes": "must_fail(lambda: os.listdir('/proc/1/fd'))",
        "forge an answer": "must_fail(lambda: os.write(os.open('/proc/1/fd/3', os.O_WRONLY), b'x'))",
        "forge an answer, another pipe": "must_fail(lambda: os.write(os.open('/proc/1/fd/4', os.O_WRONLY), b'x'))",
        "enter the namespaces of process 1": "must_fail(lambda: os.open('/proc/1/ns/mnt', os.O_RDONLY))",
        "processes of others": """
            pids = {int(one) for one in os.listdir("/proc") if one.isdigit()}
            if pids - {1, os.getpid()}:
                escaped(pids)
        """,
        "go below the supervisor's score": "must_fail(lambda: write('/proc/self/oom_score_adj', b'-1000'))",
        "mounts that name the host's folders of work": """
            if os.environ["CHECKOUT"].encode() in open("/proc/self/mountinfo", "rb").read():
                escaped("mountinfo")
        """,
        "threads of the supervisor": "must_fail(lambda: read('/proc/1/task/1/environ'))",
    },
)

NETWORK = of(
    "network",
    {
        **{
            f"socket of family {family}": f"must_fail(lambda: socket.socket({family}, {kind}))"
            for family, kind in (
                (2, 1),
                (2, 2),
                (2, 3),
                (10, 1),
                (10, 2),
                (16, 3),
                (17, 3),
                (38, 5),
                (40, 1),
                (31, 3),
                (29, 3),
                (30, 1),
                (21, 5),
                (44, 3),
                (36, 3),
            )
        },
        "a name": "must_fail(lambda: socket.getaddrinfo('example.com', 80))",
        "a connection": "must_fail(lambda: socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 1))",
        "a connection by the shell": """
            done = subprocess.run(["/bin/bash", "-c", f"echo x > /dev/tcp/127.0.0.1/{os.environ['PORT']}"],
                                  capture_output=True)
            if done.returncode == 0:
                escaped("bash")
        """,
        "a socket in the abstract name space of the host": """
            one = socket.socket(socket.AF_UNIX)
            must_fail(lambda: one.connect("\\0" + os.environ["ABSTRACT"]))
        """,
        "a socket file of the host": """
            one = socket.socket(socket.AF_UNIX)
            must_fail(lambda: one.connect(os.environ["SOCKET_PATH"]))
        """,
        "the docker daemon": """
            one = socket.socket(socket.AF_UNIX)
            must_fail(lambda: one.connect("/var/run/docker.sock"))
        """,
        "interfaces": """
            text = open("/proc/net/dev").read()
            if [line for line in text.splitlines()[2:] if not line.strip().startswith("lo:")]:
                escaped(text)
        """,
    },
)

SECRETS = of(
    "secrets",
    {
        "the environment": """
            left = set(os.environ) - {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "PWD", "PYTHONDONTWRITEBYTECODE",
                "PYTHONHASHSEED", "SECRET_PATH", "CHECKOUT", "PORT", "ABSTRACT", "SOCKET_PATH", "OUTSIDE"}
            if left:
                escaped(left)
        """,
        "the secret in the own environment": """
            if b"the-secret-" + b"marker" in open("/proc/self/environ", "rb").read():
                escaped("environ")
        """,
        "the secret in anyone's command line": """
            for one in os.listdir("/proc"):
                if one.isdigit() and b"the-secret-" + b"marker" in open(f"/proc/{one}/cmdline", "rb").read():
                    escaped(one)
        """,
        "inherited open files": """
            for one in os.listdir("/proc/self/fd"):
                if int(one) > 3:
                    escaped(one)
        """,
        "the host's name": """
            if socket.gethostname() != "box":
                escaped(socket.gethostname())
        """,
        "a terminal": "must_fail(lambda: os.open('/dev/tty', os.O_RDWR))",
        "rights": """
            for line in open("/proc/self/status"):
                name, _, value = line.partition(":")
                if name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") and int(value, 16):
                    escaped(line)
                if name == "NoNewPrivs" and value.strip() != "1" or name == "Seccomp" and value.strip() != "2":
                    escaped(line)
        """,
        "being root": "if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()): escaped('root')",
        "su": "if subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True).returncode == 0: escaped('su')",
        "mount, the program": """
            mounted = subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", "/box/tmp"], capture_output=True)
            if mounted.returncode == 0:
                escaped("mount")
        """,
        "unshare, the program": """
            if subprocess.run(["/usr/bin/unshare", "-Ur", "id"], capture_output=True).returncode == 0:
                escaped("unshare")
        """,
    },
)

PROCESSES = of(
    "processes",
    {
        "kill the parent's process": """
            must_fail(lambda: os.kill(int(os.environ["OUTSIDE"]), 0))
        """,
        "kill every number": """
            for pid in range(2, 70000):
                if pid != os.getpid():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        continue
                    escaped(pid)
        """,
        "kill everyone": "signal.signal(15, signal.SIG_IGN)\nos.kill(-1, 15)",
        **{
            f"{name} to the supervisor": f"os.kill(1, {number})"
            for name, number in (
                ("SIGKILL", 9),
                ("SIGSTOP", 19),
                ("SIGSEGV", 11),
                ("SIGINT", 2),
                ("SIGTERM", 15),
                ("SIGPIPE", 13),
                ("SIGXCPU", 24),
                ("SIGALRM", 14),
                ("SIGHUP", 1),
            )
        },
        "a daemon that stays": """
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for one in (0, 1, 2):
                        os.close(one)
                    time.sleep(60)
                os._exit(0)
        """,
        "a child that holds the output": "subprocess.Popen(['/usr/bin/sleep', '60'])",
        "a child that ignores signals": """
            if os.fork() == 0:
                for number in range(1, 65):
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                time.sleep(60)
        """,
        "a child that is stopped": """
            if os.fork() == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
        """,
        "nohup by the shell": "os.system('nohup sleep 60 >/dev/null 2>&1 &')",
        "a sub-reaper's children": """
            libc.prctl(36, 1, 0, 0, 0)
            fork_all(5, lambda: os.fork() or time.sleep(60))
        """,
        "a chain of forks that runs away": """
            for _ in range(10000):
                if os.fork():
                    os._exit(0)
        """,
    },
    None,
    "processes",
    "cpu",
)

SHADOWS = of(
    "tampering with what runs later",
    {
        "modules that shadow the supervisor's": """
            for name in ("json", "os", "select", "resource", "ctypes", "sitecustomize", "usercustomize"):
                write(f"{name}.py", b"import sys; sys.exit(3)")
        """,
        "a startup file": "write('/tmp/.pythonrc.py', b'raise SystemExit(3)')",
        "the working folder without rights": "os.chmod('.', 0)",
        "the working folder renamed": "os.rename('/box/work', '/box/x')\nos.symlink('/proc', '/box/work')",
        "a pipe in place of a file": "must_fail(lambda: os.mkfifo('pipe'))",
        "a device in place of a file": "must_fail(lambda: os.mknod('null', 0o666 | stat.S_IFCHR, os.makedev(1, 3)))",
    },
)

ATTEMPTS = [*SYSTEM_CALLS, *FILTERED, *HOST_FILES, *PROC, *NETWORK, *SECRETS, *PROCESSES, *SHADOWS]
