"""The files of a sandbox. No path leads out of the working folder, or through a link."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_PATH = 1024


class Refused(Exception):
    """What was asked for is not done; the text is for whoever asked."""


class Tree:
    """The working folder, held open: whatever is renamed later, this stays it."""

    def __init__(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def write(self, path: str, content: bytes) -> None:
        """Write a new file, then move it over the old: a hard link or a full disk leaves the rest as it was."""
        folder, name = self.folder_of(path, make=True)
        try:
            if exists_as_folder(name, folder):
                raise Refused(f"{path!r} is a folder")
            fresh = f".{os.urandom(8).hex()}"
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
                os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(fresh, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    def read(self, path: str) -> bytes:
        """The content of a file."""
        folder, name = self.folder_of(path)
        try:
            return read_regular(name, folder)
        finally:
            os.close(folder)

    def remove(self, path: str) -> None:
        """Remove a file or a link."""
        folder, name = self.folder_of(path)
        try:
            os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def walk(self, with_content: bool) -> Iterator[tuple[str, os.stat_result, str | None, bytes | None]]:
        """Yield path, status, the link's target or None, and the content or None. What cannot be read is left out."""
        folders = [""]
        while folders:
            prefix = folders.pop()
            try:
                folder = self.open_folder([part for part in prefix.split("/") if part], make=False)
            except (OSError, Refused):
                continue
            try:
                for name in sorted(os.listdir(folder)):
                    path = prefix + name
                    try:
                        path.encode()
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode):
                            folders.append(path + "/")
                        elif stat.S_ISLNK(status.st_mode):
                            yield path, status, os.readlink(name, dir_fd=folder), None
                        elif stat.S_ISREG(status.st_mode):
                            yield path, status, None, read_regular(name, folder) if with_content else None
                    except (OSError, Refused, UnicodeError):
                        continue
            finally:
                os.close(folder)

    def folder_of(self, path: str, make: bool = False) -> tuple[int, str]:
        """The open folder that a path is in, and the last name of it."""
        parts = path.split("/")
        odd = len(path) > LONGEST_PATH or "\0" in path or not encodable(path)
        if odd or any(part in ("", ".", "..") for part in parts):
            raise Refused(f"{path[:80]!r} is not a path below the working folder")
        return self.open_folder(parts[:-1], make), parts[-1]

    def open_folder(self, parts: list[str], make: bool) -> int:
        """Open folder after folder, none of them through a link."""
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.root)
        for part in parts:
            try:
                if make:
                    try:
                        os.mkdir(part, dir_fd=folder)
                    except FileExistsError:
                        pass
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                os.close(folder)
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise Refused(f"{part[:80]!r} is not a folder") from None
                raise
            os.close(folder)
            folder = below
        return folder


def encodable(path: str) -> bool:
    """Whether it is text; half of a surrogate pair, which JSON can say, is none."""
    try:
        path.encode()
    except UnicodeError:
        return False
    return True


def read_regular(name: str, folder: int) -> bytes:
    """The content of a regular file; a link, a pipe or a device is refused."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused("not a file")
        return file.read()


def exists_as_folder(name: str, folder: int) -> bool:
    """Whether there is a folder of that name."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
