# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that listen some time after their port was chosen."""

import itertools
import os

PORTS = itertools.count(20_000 + os.getpid() % 300 * 40)
"""One for each server. They lie below those that the kernel gives to connections, which may have taken one
meanwhile."""
