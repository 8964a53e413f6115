# SPDX-License-Identifier: Apache-2.0
"""Evaluation: does speculation change a model's answers?"""
