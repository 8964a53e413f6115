# SPDX-License-Identifier: Apache-2.0
"""Declares the one C extension; everything else is in pyproject.toml."""

import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError, LinkError, PlatformError

# Built for the limited API of 3.11, which has buffers, one wheel serves every later Python. A Python without the GIL
# has no limited API; the module refuses it in a sentence.
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Build(build_ext):
    """Says what to do if the compilation fails; the compiler's own output stands above."""

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except (CompileError, ExecError, LinkError, PlatformError) as error:
            sys.exit(
                f"error: sam_core cannot be compiled here ({error}): install gcc, libc6-dev and Python's headers "
                "(python3-dev), or install a wheel from dist/, where ci/build-wheels in the repository builds it "
                "without a compiler"
            )


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "sam_core._sam",
            sources=sorted(glob("csrc/*.c")),
            depends=sorted(glob("csrc/*.h")),
            include_dirs=["csrc"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
