# SPDX-License-Identifier: Apache-2.0
"""Prepare data sets: convert public files to verl's schema, check and deduplicate them, and keep a record."""
