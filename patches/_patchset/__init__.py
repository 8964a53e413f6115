# SPDX-License-Identifier: Apache-2.0
"""The parts of the patchset tool; the command line is in cli.py."""
