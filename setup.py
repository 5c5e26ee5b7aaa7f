"""Compile the hot modules if GNSQD_COMPILE is 1; otherwise they run as they are, and a build takes seconds.

The list of them is `[tool.gnsqd]` in pyproject.toml, as all else that packaging reads. A wheel without compiled modules
is for every machine. Only what changed is compiled again.
"""

import os
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

# Six times as fast to compile as -O3 -g, and no slower in any row of the benchmarks.
COMPILE_ARGS = ["-O1", "-g0"]
# Types come from the .pxd files alone: annotations are for mypy, and must not make the two lanes behave differently.
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "binding": True}


def build_requires() -> list[str]:
    """What a build needs beside setuptools."""
    return ["Cython>=3.1"] if os.environ.get("GNSQD_COMPILE", "0") not in ("", "0") else []


def source_of(module: str) -> str:
    path = module.replace(".", "/") + ".py"
    return path if Path(path).exists() else path + "x"


def main() -> None:
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError
    from setuptools.modified import newer_group

    class BuildExt(build_ext):
        def finalize_options(self) -> None:
            super().finalize_options()
            self.parallel = self.parallel or os.cpu_count()

        def build_extensions(self) -> None:
            with tempfile.TemporaryDirectory() as directory:
                probe = Path(directory, "probe.c")
                probe.write_text("#include <Python.h>")
                try:
                    self.compiler.compile([str(probe)], output_dir=directory)
                except CompileError as error:
                    sys.exit(f"GNSQD_COMPILE needs a C compiler and Python's headers: {error}")

            from Cython.Build import cythonize

            translated = cythonize(
                self.extensions, build_dir="build/cython", compiler_directives=DIRECTIVES, nthreads=self.parallel
            )
            sources = {extension.name: extension.sources for extension in translated}
            for extension in self.extensions:
                extension.sources = sources[extension.name]
            expected = {self.get_ext_fullpath(extension.name) for extension in self.extensions}
            for path in Path(self.build_lib).rglob("*" + sysconfig.get_config_var("EXT_SUFFIX")):
                if str(path) not in expected:
                    path.unlink()
            self.stale = [extension.name for extension in self.extensions if self.is_stale(extension)]
            super().build_extensions()

        def is_stale(self, extension: Extension) -> bool:
            return newer_group([*extension.sources, *extension.depends], self.get_ext_fullpath(extension.name))

        def build_extension(self, extension: Extension) -> None:
            if extension.name in self.stale:
                number = self.stale.index(extension.name) + 1
                sys.stdout.write(f"compiling {number} of {len(self.stale)}: {extension.name}\n")
                sys.stdout.flush()
            try:
                super().build_extension(extension)
            except BaseException:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)  # the next build must not take it
                raise

    modules = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["gnsqd"]["compiled"]
    requires = build_requires()
    setup(
        cmdclass={"build_ext": BuildExt},
        ext_modules=[
            Extension(module, [source_of(module)], depends=["setup.py"], extra_compile_args=COMPILE_ARGS)
            for module in (modules if requires else [])
        ],
        setup_requires=requires,
    )


if __name__ == "__main__":
    main()
