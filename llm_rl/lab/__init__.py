# SPDX-License-Identifier: Apache-2.0
"""The lab: drafting methods of the literature on shared parts, replayed on recordings and verified by a real model."""
