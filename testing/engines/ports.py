# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that start to listen some time after their port was chosen."""

import itertools
import os

PORTS = itertools.count(20_000 + os.getpid() % 300 * 40, 4)
"""One port for each server; if it is in use, vLLM tries the next ones. They are below the kernel's ephemeral ports,
which a connection might use in the meantime."""
