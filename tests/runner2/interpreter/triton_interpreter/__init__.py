# SPDX-License-Identifier: Apache-2.0
"""With this folder's parent on PYTHONPATH, Triton has a backend `cpu`, as vLLM's CPU build asks before it takes its
second runner. It compiles nothing: kernels run in Triton's interpreter (TRITON_INTERPRET=1). It is never shipped."""
