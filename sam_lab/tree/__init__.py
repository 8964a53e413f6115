# SPDX-License-Identifier: Apache-2.0
"""Tree verification on a transformers causal LM: one decoder for every drafting method."""
