"""Attempts to take more than the limits give: processes, memory, disk, output, time, and whatever else there is."""

from __future__ import annotations

from tests.sandbox.attempt import number_of, of

ATTEMPTS = [
    *of(
        "processes without end",
        {
            "fork bomb": "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
            "fork bomb that gives way": """
                while True:
                    try:
                        os.fork()
                    except OSError:
                        time.sleep(0.01)
            """,
            "fork bomb of the shell": "os.system('/bin/bash -c \\':(){ :|:& };:; sleep 5\\'')",
            "thread bomb": """
                while True:
                    try:
                        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
                    except RuntimeError:
                        time.sleep(0.01)
            """,
            "exec bomb": "os.fork()\nos.execv(sys.executable, [sys.executable, 'main.py'])",
        },
        "cpu", "wall", "memory", "output", None,
    ),
    *of(
        "memory",
        {
            "one block": "must_fail(lambda: bytearray(2**34))",
            "block after block": "held = []\nwhile True:\n    held.append(bytearray(2**22))",
            "byte after byte": "held = b'x'\nwhile True:\n    held += held",
            "in many processes": """
                def hold():
                    held = [bytearray(b"x" * 2**20) for _ in range(48)]
                    time.sleep(60)
                fork_all(24, hold)
                time.sleep(60)
            """,
            "in many processes, slowly": """
                def hold():
                    held = []
                    while True:
                        held.append(bytearray(b"x" * 2**20))
                        time.sleep(0.01)
                fork_all(24, hold)
                time.sleep(60)
            """,
            "on the stack": "sys.setrecursionlimit(10**9)\ndef deeper(): return deeper()\ndeeper()",
            "locked": f"must_fail(lambda: call({number_of('mlock')}, 0x10000, 2**20))",
            "in a shared file that is mapped": """
                import mmap
                must_fail(lambda: os.truncate(os.open("big", os.O_RDWR | os.O_CREAT), 2**30))
            """,
            "by decompression": "import zlib\nheld = zlib.decompress(zlib.compress(bytes(2**26)) ) * 16",
        },
        "memory", "wall", "cpu", None,
    ),
    *of(
        "disk",
        {
            "one file": "signal.signal(25, signal.SIG_IGN)\nmust_fail(lambda: write('big', bytes(2**25)))",
            "one file, unmindful of signals": """
                signal.signal(25, signal.SIG_DFL)
                write("big", bytes(2**25))
                escaped("big")
            """,
            "many files": """
                def fill():
                    for number in range(10**6):
                        write(f"file{number}", bytes(2**20))
                must_fail(fill)
            """,
            "in /tmp": """
                def fill():
                    for number in range(10**6):
                        write(f"/tmp/file{number}", bytes(2**20))
                must_fail(fill)
            """,
            "removed and still open": """
                def fill():
                    held = []
                    while True:
                        held.append(open(f"file{len(held)}", "wb"))
                        os.unlink(held[-1].name)
                        held[-1].write(bytes(2**20))
                must_fail(fill)
            """,
            "a sparse file": "must_fail(lambda: os.truncate(os.open('big', os.O_RDWR | os.O_CREAT), 2**40))",
            "space beforehand": """
                big = os.open("big", os.O_RDWR | os.O_CREAT)
                must_fail(lambda: os.posix_fallocate(big, 0, 2**30))
            """,
            "hard links": """
                write("one")
                for number in range(10**4):
                    os.link("one", f"link{number}")
            """,
            "symbolic links": "for number in range(10**6): os.symlink('x' * 200, f'link{number}')",
            "deep folders": """
                for number in range(10**5):
                    os.mkdir("d")
                    os.chdir("d")
            """,
            "empty files": "for number in range(10**7): os.close(os.open(f'{number}', os.O_CREAT))",
            "a core": """
                import resource
                must_fail(lambda: resource.setrlimit(resource.RLIMIT_CORE, (2**20, 2**20)))
                os.abort()
            """,
        },
        None, "files", "wall", "memory", "cpu",
    ),
    *of(
        "output",
        {
            "without end": "while True: os.write(1, b'x' * 65536)",
            "errors without end": "while True: os.write(2, b'x' * 65536)",
            "both": "while True:\n    os.write(1, b'x' * 4096)\n    os.write(2, b'x' * 4096)",
            "by children that outlive": "fork_all(4, lambda: [os.write(1, b'x' * 4096) for _ in range(10**6)])",
            "by yes": "os.execv('/usr/bin/yes', ['yes'])",
            "one line": "print('x' * 2**24)",
        },
        "output",
    ),
    *of(
        "time",
        {
            "a loop": "while True: pass",
            "a loop in children": "fork_all(8, lambda: [None for _ in iter(int, 1)])\ntime.sleep(60)",
            "a loop that ignores SIGXCPU": "signal.signal(24, signal.SIG_IGN)\nwhile True: pass",
            "sleep": "time.sleep(60)",
            "sleep that ignores signals": """
                for number in (1, 2, 15):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(60)
            """,
            "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
            "a read that never comes": "r, w = os.pipe()\nos.read(r, 1)",
            "closed output": "os.close(1)\nos.close(2)\ntime.sleep(60)",
            "children, short and many": "while True: subprocess.run(['/usr/bin/true'])",
            "a pattern that backtracks": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        },
        "wall", "cpu",
    ),
    *of(
        "other means",
        {
            "open files": """
                held = []
                def fill():
                    while True:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                must_fail(fill)
                if len(held) > 64:
                    escaped(len(held))
            """,
            "pipes that hold much": """
                import fcntl
                def fill():
                    while True:
                        r, w = os.pipe()
                        fcntl.fcntl(w, 1031, 2**24)
                must_fail(fill)
            """,
            "sockets that hold much": """
                held = []
                def fill():
                    while True:
                        held.extend(socket.socketpair())
                        held[-1].setblocking(False)
                        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)
                        held[-1].send(bytes(2**17))
                must_fail(fill)
                if len(held) > 64:
                    escaped(len(held))
            """,
            "a higher priority": "must_fail(lambda: os.nice(-10))",
            "a real-time class": "must_fail(lambda: os.sched_setscheduler(0, 1, os.sched_param(1)))",
            **{
                f"raise the limit {name}": f"""
                    import resource
                    limit = resource.{name}
                    must_fail(lambda: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
                """
                for name in ("RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
            },
            "queued signals": """
                signal.pthread_sigmask(signal.SIG_BLOCK, {40})
                def fill():
                    for _ in range(10**5):
                        if libc.sigqueue(os.getpid(), 40, 0):
                            raise OSError("full")
                must_fail(fill)
            """,
            "a huge argument": "must_fail(lambda: subprocess.run(['/usr/bin/true', 'x' * 2**22]))",
        },
        None, "memory",
    ),
]  # fmt: skip
