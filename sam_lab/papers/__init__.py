# SPDX-License-Identifier: Apache-2.0
"""SuffixDecoding, REST and GSD: what each paper claims, its method, and whether the claims hold on the shipped answers.

`python -m sam_lab papers` measures all claims. The verdict in each module is from a run of this command.
"""
