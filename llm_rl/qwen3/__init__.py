# SPDX-License-Identifier: Apache-2.0
"""Qwen3 recipes: the tiny model that runs the whole loop on any machine, and the cluster recipes."""
