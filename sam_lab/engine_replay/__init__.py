# SPDX-License-Identifier: Apache-2.0
"""Recorded answers drive the real engine: step times and accepted drafts are real, weights are random.

A model of a real architecture gets dummy weights, and after its LM head the logit of the recorded next token is raised
so much that every sampler chooses it. The token depends only on the position, so rows that verify drafts are right too.
"""
