# SPDX-License-Identifier: Apache-2.0
"""How each release of verl runs a recipe. llm_rl/pin_set.py describes the files."""
