# SPDX-License-Identifier: Apache-2.0
"""Declares the one C extension; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sam_core._sam",
            sources=["csrc/module.c", "csrc/pool.c", "csrc/sam.c"],
            depends=["csrc/pool.h", "csrc/sam.h"],
            include_dirs=["csrc"],
            extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off"],
        )
    ]
)
