# SPDX-License-Identifier: Apache-2.0
"""Recorded answers drive the real patched engine: the time of its steps and what is accepted are both real, no weights are.

A model of true shape gets dummy weights, and after its LM head the logit of the recorded next token is raised so far that
every sampler takes it. Position alone decides which token that is, so rows that verify drafts are right, too.
"""
