"""The steps of the Containerfile without a container engine: its commands run as they stand, below a directory.

The stages share that directory, so that COPY --from has nothing to do. What is not as in an image: the libraries that
gnsqd needs come from the environment of the tests, who is not root cannot give /data to somebody else, and the wheel is
built without extension modules, which takes a minute less; the one that was installed for the tests, of the same files,
takes its place. The context leaves out what the list of ignored files has.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from container.containerfile import DIRECTORY, ROOT, exec_form, health_check, read, services
from gnsqd.configuration import parse_flags
from kit.daemons import DEADLINE, Instance, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("GNSQD_EXPECT_LANE") != "compiled", reason="not a compiled installation (make test)"
    ),
]

STAGES = read()
TOPS = ("source", "wheels", "opt", "data", "nsqd", "nsqlookupd")


@dataclass
class Image:
    """The files that would be in the image, below `root`, and the environment of its processes."""

    root: Path
    environment: dict[str, str]

    def path(self, text: str) -> str:
        """Puts absolute paths below the root."""
        return re.sub(rf"(?<![\w./-])/(?=(?:{'|'.join(TOPS)})\b)", f"{self.root}/", text)

    def command(self, words: list[str]) -> list[str]:
        """Finds the program there, as execvp does."""
        program = shutil.which(self.path(words[0]), path=self.environment["PATH"])
        assert program is not None, words[0]
        return [program, *map(self.path, words[1:])]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Builds the image."""
    image = Image(tmp_path_factory.mktemp("container") / "image", dict(os.environ))
    image.root.mkdir()
    for name in ("PYTHONPATH", "NOTIFY_SOCKET"):
        image.environment.pop(name, None)
    image.environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # python, and pip, of the base
        "PIP_NO_BUILD_ISOLATION": "0",  # which is how pip's environment says that there is none
        "PIP_NO_DEPS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    for stage in STAGES:
        directory = image.root
        for instruction, argument in stage.instructions:
            if instruction == "WORKDIR":
                directory = Path(image.path(argument))
                directory.mkdir(exist_ok=True)
            elif instruction == "COPY" and not argument.startswith("--from="):
                copy(*image.path(argument).split(), directory=directory)
            elif instruction == "RUN":
                argument = re.sub(r"--(owner|group)=\d+", lambda match: f"--{match[1]}={own_id(match[1])}", argument)
                # What is compiled comes from the installed wheel.
                run(image, image.path(argument).replace("GNSQD_COMPILE=1 ", ""), directory)
                if "pip wheel" in argument:
                    put_in_the_installed_wheel(image.root / "wheels")
            elif instruction == "ENV":
                name, _, value = argument.partition("=")
                image.environment[name] = image.path(value).replace("$PATH", image.environment["PATH"])
    (packages,) = (image.root / "opt" / "gnsqd").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    return image


def put_in_the_installed_wheel(directory: Path) -> None:
    def names(wheel: Path) -> set[str]:
        with zipfile.ZipFile(wheel) as opened:
            return {name for name in opened.namelist() if not name.endswith(".so")}

    (installed,) = Path(sys.prefix, "dist").glob("*.whl")
    (built,) = directory.iterdir()
    assert names(built) == names(installed), "what the image's build was given is not all that there is"
    built.unlink()
    shutil.copy(installed, directory)


def copy(*words: str, directory: Path) -> None:
    """Does COPY: of several sources what they are into a directory, of a single directory its content."""
    *sources, target = words
    if target.endswith("/") and not target.startswith("./"):
        (directory / target).mkdir(parents=True, exist_ok=True)
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, directory / target, ignore=ignored)
        else:
            shutil.copy(ROOT / source, directory / target)


def ignored(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if is_ignored(Path(directory, name).relative_to(ROOT))]


def is_ignored(path: Path) -> bool:
    """Applies .dockerignore's rules: the last matching line decides, and a line also matches what is below it."""
    result = False
    for line in (DIRECTORY / "Containerfile.dockerignore").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        if pattern.startswith("**/"):
            matches = any(fnmatchcase(part, pattern[3:]) for part in path.parts)
        else:
            matches = any(fnmatchcase(name, pattern) for name in map(str, (path, *path.parents)) if name != ".")
        if matches:
            result = not line.startswith("!")
    return result


def own_id(kind: str) -> int:
    return os.getuid() if kind == "owner" else os.getgid()


def run(image: Image, command: str, directory: Path) -> None:
    result = subprocess.run(
        ["/bin/sh", "-c", command], cwd=directory, env=image.environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"


@pytest.fixture
def daemon(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """Starts gnsqd as the compose file does, with ports that are free; its nsqlookupd is not there yet."""
    for name in set(os.environ) - set(image.environment):
        monkeypatch.delenv(name)
    for name, value in image.environment.items():
        monkeypatch.setenv(name, value)
    program, *flags = [
        word.replace("nsqlookupd:4160", f"127.0.0.1:{free_port()}") for word in services()["gnsqd"]["command"]
    ]
    flags += [f"--http-address=127.0.0.1:{free_port()}"]
    with Instance(image.command([program]), tmp_path / "data", *map(image.path, flags)) as daemon:
        yield daemon


def health(image: Image, *checks: str) -> int:
    """Returns the exit code of the health check, for what would listen on these ports."""
    command = [*health_check(), *checks]
    return subprocess.run(
        image.command(command), env=image.environment, stderr=subprocess.DEVNULL, timeout=DEADLINE
    ).returncode


def test_its_steps_make_a_daemon_that_is_healthy_until_it_stops(image: Image, daemon: Instance) -> None:
    assert "(compiled, native sockets)" in daemon.log()
    assert (image.root / "data" / "nsqd.dat").exists(), "the volume is not its data path"
    check = f"{daemon.http_address[1]}/healthz"
    assert health(image, check) == 0
    daemon.send_signal(signal.SIGSTOP)
    assert health(image, check) == 1, "one that hangs is not healthy"
    daemon.send_signal(signal.SIGCONT)
    assert health(image, check) == 0
    assert daemon.terminate() == 0
    assert health(image, check) == 1
    # Signals reach it, which runs as nobody in particular, and its data outlives it.
    program, *flags = exec_form(STAGES[-1].last("CMD"))
    assert (STAGES[-1].all("ENTRYPOINT"), STAGES[-1].last("STOPSIGNAL")) == ([], "SIGTERM")
    assert parse_flags(flags)[0]["data_path"] == STAGES[-1].last("VOLUME") == STAGES[-1].last("WORKDIR")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", STAGES[-1].last("USER"))
    # Its own command, and that of who had the real nsqd's image before.
    assert shown_version(image, program) == shown_version(image, "/nsqd")
    assert shown_version(image, "/nsqd").startswith("nsqd v1.3.0 (built w/gnsqd-")
    assert shown_version(image, "/nsqlookupd").startswith("nsqlookupd v1.3.0 (built w/gnsqd-")
    assert shown_version(image, "gnsqadmin")


def shown_version(image: Image, program: str) -> str:
    command = [*image.command([program]), "--version"]
    return subprocess.run(command, env=image.environment, capture_output=True, text=True, check=True).stdout
