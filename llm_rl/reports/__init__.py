# SPDX-License-Identifier: Apache-2.0
"""Reports made from finished runs."""
