# SPDX-License-Identifier: Apache-2.0
"""Declares the one C extension; everything else is in pyproject.toml."""

import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup

# Built for the limited API of 3.11, which has buffers, one wheel serves every later Python. A Python without the GIL
# has no limited API; the module refuses it in a sentence.
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
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
