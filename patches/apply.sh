#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Patch the packages of a Python environment: patches/apply.sh [PIN_SET] [--env VENV | --to DIR] [--module M]
exec "${PYTHON:-python3}" "$(dirname -- "$0")/patchset" apply "$@"
