# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that listen some time after their port was chosen."""

import itertools
import os

PORTS = itertools.count(20_000 + os.getpid() % 300 * 40, 4)
"""One for each server; where it is taken, vLLM tries those behind it. They lie below those that the kernel gives to
connections, which may have taken one meanwhile."""
