# SPDX-License-Identifier: Apache-2.0
"""Switch `auto` in random worlds: machines, loads and drafts whose true costs and acceptance are known."""
