# SPDX-License-Identifier: Apache-2.0
"""Preparation of data sets: public files into verl's schema, checked, without duplicates, with a record."""
