# SPDX-License-Identifier: Apache-2.0
"""Recipes for reinforcement learning of Qwen3 with suffix-automaton drafting, and what the recipes share."""
