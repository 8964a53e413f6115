# SPDX-License-Identifier: Apache-2.0
"""What a recipe needs of each release of verl: llm_rl/pin_set.py describes the files."""
