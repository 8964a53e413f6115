# SPDX-License-Identifier: Apache-2.0
"""Evaluation: does speculation change what a model answers, and how many tokens does a step yield?"""
