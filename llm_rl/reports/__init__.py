# SPDX-License-Identifier: Apache-2.0
"""Reports on finished runs."""
