"""Choose the user that runs PostgreSQL, which refuses to run as root, and give that user access to its files.

No system user is created. Others get the permission to pass through a private folder, never to list it. Only
the server's own folder and folders below the system's temporary folder are changed.
"""

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from sea_mq_worker.embedded.process import Account, ServerStartError

SERVICE_USERS = ("postgres", "nobody")


def account_for(data: Path) -> Account:
    """Return the current user; as root, the owner of the data, or a service user for new data."""
    if os.geteuid() != 0:
        return Account.own()
    if data.exists() and data.stat().st_uid != 0:
        return Account(data.stat().st_uid, data.stat().st_gid)
    for name in SERVICE_USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(user.pw_uid, user.pw_gid)
    raise ServerStartError(
        f"PostgreSQL refuses to run as root on {data}, and this system has no user named "
        f"{' or '.join(SERVICE_USERS)}; run as an ordinary user instead"
    )


def can_pass(path: Path, account: Account) -> bool:
    """Return whether the account may execute the file or pass through the folder."""
    status = path.stat()
    if account.uid in (0, status.st_uid):
        return bool(status.st_mode & stat.S_IXUSR)
    if account.gid == status.st_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def open_way_to(folder: Path, account: Account) -> None:
    """Give the account access to the folder.

    Raises:
        ServerStartError: a parent folder denies access; the text names it.
    """
    temporary = Path(tempfile.gettempdir()).resolve()
    for path in (folder, *folder.parents):
        if can_pass(path, account):
            continue
        if path != folder and not path.is_relative_to(temporary):
            raise ServerStartError(
                f"PostgreSQL on {folder} has to run as {pwd.getpwuid(account.uid).pw_name}, who may not "
                f"pass through {path}; choose another folder, or allow it with: chmod o+x {path}"
            )
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXOTH)


def reachable_copy(package: Path, program: Path, account: Account, copy: Path) -> Path:
    """Return the package's folder, or a copy of it if the account cannot run the program there.

    A virtual environment under root's home needs such a copy. The package's bundled libraries are in
    ``<name>.libs`` beside it, and the program finds them by a relative path.
    """
    if all(can_pass(path, account) for path in (program, *program.parents)):
        return package
    if not copy.exists():
        unfinished = copy.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for source in package.parent.glob(f"{package.name}*"):
            if source.suffix in {"", ".libs"}:
                shutil.copytree(source, unfinished / source.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(0o755)
        unfinished.rename(copy)
    return copy / package.name
