# SPDX-License-Identifier: Apache-2.0
"""Qwen3 recipes, and the tiny model that runs the whole loop on any machine."""
