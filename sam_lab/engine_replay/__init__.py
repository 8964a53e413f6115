# SPDX-License-Identifier: Apache-2.0
"""Recorded answers drive the real engine: times of steps and accepted drafts are real, the weights are random.

A model of a real architecture gets dummy weights, and after its LM head the logit of the recorded next token is raised
so far that every sampler takes it. The token depends on the position alone, so rows that verify drafts are right, too.
"""
