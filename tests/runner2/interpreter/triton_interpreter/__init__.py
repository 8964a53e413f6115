# SPDX-License-Identifier: Apache-2.0
"""A Triton backend `cpu`, found if this folder's parent is on PYTHONPATH. vLLM's CPU build needs one for its second
runner. It compiles nothing: kernels run in Triton's interpreter (TRITON_INTERPRET=1). It is never shipped."""
