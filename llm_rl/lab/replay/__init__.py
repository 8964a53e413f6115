# SPDX-License-Identifier: Apache-2.0
"""Replay of recorded answers by the lab's methods: a front on `sam_core.replay`, with pictures; exporters."""
