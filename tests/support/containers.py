"""Containers without an engine: a process with its own network, root and user.

The root holds this machine's programs and Python, all read-only; beside them only the volumes and
tmpfs mounts that the service declares exist. The user has no capability and can gain none. CPU and
memory limits are not applied, and processes of other containers can be seen.
"""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from support.compose_file import ComposeService, Mount
from support.private_network import PrivateNetwork

_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = ("bin", "sbin", "lib", "lib64")
#: Docker's defaults for a tmpfs mount.
_TMPFS_OPTIONS = "noexec,nosuid,nodev"


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. Its process is the service itself."""

    process: subprocess.Popen[bytes]
    address: str
    environment: dict[str, str]
    user: str


def start_container(
    service: ComposeService,
    network: PrivateNetwork,
    *,
    argv: list[str],
    environment: dict[str, str],
    programs: list[Path],
    folder: Path,
    log: BinaryIO,
) -> Container:
    """``argv`` as ``service`` declares it.

    Args:
        service: its mounts name directories of this machine.
        programs: what ``argv`` needs of this machine beside /usr; shown at the same places.
        folder: an empty folder, for this container alone.
    """
    namespace, address = network.add_host()
    (folder / "resolv.conf").write_text(f"nameserver {network.name_server}\n")
    script = "\n".join(
        [
            *_root(folder),
            *(line for each in service.tmpfs.items() for line in _tmpfs(*each)),
            *(line for path in [Path("/usr"), *programs] for line in _volume(_shown(path))),
            *(line for mount in service.mounts for line in _volume(mount)),
            *(["mount -o remount,ro $root"] if service.is_read_only else []),
            "exec chroot $root " + shlex.join([*_as(service.user), *argv]),
        ]
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, "unshare", "--mount", "sh", "-ec", script],
        env=environment,
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
    )
    return Container(process, address, environment, service.user)


def run_inside(container: Container, argv: list[str], *, timeout_s: float) -> bool:
    """Whether ``argv`` ends well inside ``container``, as a health check does."""
    uid, gid = container.user.split(":")
    enter = ["nsenter", f"--target={container.process.pid}", "--mount", "--net", "--root", "--wd"]
    try:
        done = subprocess.run(
            [*enter, f"--setuid={uid}", f"--setgid={gid}", "--", *argv],
            env=container.environment,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def programs_of(*pythons: Path) -> list[Path]:
    """What has to be shown so that this Python, and environments ``pythons``, run."""
    wanted = {Path(sys.base_prefix), Path(sys.prefix), *pythons}
    wanted |= {Path(entry) for entry in sys.path if Path(entry).is_dir()}
    places = {path.resolve() for path in wanted}
    covers = {*places, Path("/usr")}
    return sorted(path for path in places if not covers & set(path.parents))


def _root(folder: Path) -> list[str]:
    """Lines that make ``$root``: devices and an /etc of its own."""
    lines = [f"root={shlex.quote(str(folder / 'root'))}", "mkdir $root"]
    lines += ["mount -t tmpfs -o mode=755 fleet $root"]
    lines += [f"test -L /{name} && cp -P /{name} $root/{name} || true" for name in _LINKS]
    lines += ["mkdir -p $root/etc $root/proc $root/dev", "mount --rbind /proc $root/proc"]
    lines += ["touch $root/etc/ld.so.cache", "mount --bind /etc/ld.so.cache $root/etc/ld.so.cache"]
    lines += ["echo 127.0.0.1 localhost > $root/etc/hosts"]
    lines += ["echo hosts: files dns > $root/etc/nsswitch.conf"]
    lines += [f"cp {shlex.quote(str(folder / 'resolv.conf'))} $root/etc/resolv.conf"]
    for device in _DEVICES:
        lines += [f"touch $root/dev/{device}", f"mount --bind /dev/{device} $root/dev/{device}"]
    return [*lines, *_tmpfs("/dev/shm", "size=64m,mode=1777")]


def _shown(path: Path) -> Mount:
    return Mount(str(path), str(path), is_writable=False)


def _volume(mount: Mount) -> list[str]:
    source, target = shlex.quote(mount.source), "$root" + shlex.quote(mount.target)
    lines = [f"mkdir -p {target}"]
    if Path(mount.source).is_file():
        lines = [f"mkdir -p $(dirname {target})", f"touch {target}"]
    lines += [f"mount --bind {source} {target}"]
    return lines if mount.is_writable else [*lines, f"mount -o remount,bind,ro {target}"]


def _tmpfs(target: str, options: str) -> list[str]:
    place = "$root" + shlex.quote(target)
    return [f"mkdir -p {place}", f"mount -t tmpfs -o {_TMPFS_OPTIONS},{options} tmpfs {place}"]


def _as(user: str) -> list[str]:
    uid, gid = user.split(":")
    return [
        *("/usr/bin/setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"),
        *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"),
    ]
