# SPDX-License-Identifier: Apache-2.0
"""Integration with verl: seeds and groups of requests, routing, metrics of a training step."""

from pathlib import Path

ROUTER_CONFIG = Path(__file__).parent / "router.yaml"
"""Value of verl's `actor_rollout_ref.rollout.router_config_path` for PromptRouter."""
