"""A Java process with one of the simulators that are written for Java, spoken to through py4j.

The packages textworld-express and scienceworld start such a process for each of their environment objects. Here one process
serves all episodes of an environment, and only the calls that a step needs are made.

Two things in it are set for the same task to be the same text every time. The simulators keep objects in hash tables by
identity, so that the order of things in a room, and even what an electric circuit does, changes from run to run: an option
gives every object one identity hash, and the tables keep the order of insertion. And chance comes from one generator of the
whole process, which `seed` sets.

The process ends with `close`, and also when its standard input does, so it does not outlive this one, however that ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.packages import INSTALL, package_file

T = TypeVar("T")

PACKAGE = "default-jre-headless"  # Debian's and Ubuntu's
_OPTIONS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # one identity hash for all objects
    "-XX:+UseSerialGC",  # one thread, where the default takes one a core
)


class Java:
    """A Java process with a package's jar. `memory` bounds its heap, in the unit of Java's -Xmx.

    Raises EpisodeError: MISSING when Java or a package is not installed, FAULT when the process does not start.
    """

    def __init__(self, environment: str, package: str, distribution: str, jar: str, memory: str) -> None:
        self._environment = environment
        path = package_file(package, distribution, jar, environment)
        java = find_java(environment)
        try:
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from py4j.protocol import Py4JError, Py4JJavaError
        except ImportError as error:
            raise EpisodeError(
                EpisodeErrorKind.MISSING, environment, "", f"the package py4j is not installed; {INSTALL} installs it"
            ) from error
        self._java_error, self._error = Py4JJavaError, Py4JError
        options = [*_OPTIONS, f"-Xmx{memory}"]
        try:
            port, token, self._process = launch_gateway(
                classpath=str(path),
                javaopts=options,
                java_path=java,
                cwd=str(path.parent),
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError, Py4JError) as error:
            what = f"{java} {' '.join(options)} did not start ({error}); try it, and look whether the memory is there"
            raise EpisodeError(EpisodeErrorKind.FAULT, environment, "", what) from error
        # It also logs what it raises, with a traceback, in the midst of garbage collections, too: Python 3.11 then may fail
        # with "AST constructor recursion depth mismatch" in whatever is being compiled.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        self._lock = threading.RLock()
        self.jvm: Any = self._gateway.jvm
        random = getattr(self.jvm.scala.util, "Random$")
        self._random = self.call(lambda: getattr(random, "MODULE$"))

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._process.pid)

    def call(self, do: Callable[[], T], task: str = "") -> T:
        """What `do` returns, which calls into the process; one at a time. Raises EpisodeError, FAULT, when Java fails."""
        try:
            with self._lock:
                return do()
        except self._java_error as error:
            what = f"Java failed: {str(error.java_exception)[:300]}"
            raise EpisodeError(EpisodeErrorKind.FAULT, self._environment, task, what) from error
        except (self._error, OSError) as error:
            said = " ".join(str(error).split())[:300]
            what = f"the Java process does not answer ({said}); make the environment anew, with more memory if that ran out"
            raise EpisodeError(EpisodeErrorKind.FAULT, self._environment, task, what) from error

    def seed(self, seed: int) -> None:
        """Set the process's random generator. To be called inside `call`, before what chance is part of."""
        self._random.setSeed(seed)

    def close(self) -> None:
        """End the process, and wait for its end."""
        with contextlib.suppress(self._error, OSError):  # it may be gone already
            self._gateway.shutdown()
        self._gateway._gateway_client.is_connected = False  # objects that Python drops from here on are told to nobody
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # Java waits for the end of its input
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def find_java(environment: str) -> str:
    """The java program: JAVA_HOME's, else the one on the path. Raises EpisodeError, MISSING."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java")) if home else None
    java = java or shutil.which("java")
    if java is None:
        what = f"there is no Java (`java` on the path, or JAVA_HOME); install a runtime, such as Debian's {PACKAGE}"
        raise EpisodeError(EpisodeErrorKind.MISSING, environment, "", what)
    return java
