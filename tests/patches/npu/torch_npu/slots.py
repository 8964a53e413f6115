# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.23's kernel that gives each token its slot in the KV cache: a Triton kernel without a fallback in torch."""

import sys

from .calls import counted


class SlotMappingKernel:
    """Called as kernel[(R + 1,)](...) for R requests: positions int[N], query_start_loc int[>= R + 1] with N at R."""

    def __getitem__(self, grid):
        @counted
        def _compute_slot_mapping_kernel(
            num_tokens,
            max_num_tokens,
            query_start_loc,
            positions,
            block_table,
            stride,
            block_size,
            slot_mapping,
            *,
            TOTAL_CP_WORLD_SIZE,
            TOTAL_CP_RANK,
            CP_KV_CACHE_INTERLEAVE_SIZE,
            PAD_ID,
            BLOCK_SIZE,
        ):
            starts = query_start_loc[: grid[0]].tolist()
            assert TOTAL_CP_WORLD_SIZE == 1, "context parallelism is not in the stand-in"
            assert starts[-1] <= num_tokens <= max_num_tokens, (starts, num_tokens, max_num_tokens)
            for i in range(grid[0] - 1):
                rows = slice(starts[i], starts[i + 1])
                place = positions[rows].long()
                blocks = block_table[i][place // block_size].long()
                slot_mapping[rows] = (blocks * block_size + place % block_size).to(slot_mapping.dtype)
            slot_mapping[num_tokens:max_num_tokens] = PAD_ID

        return _compute_slot_mapping_kernel


def install():
    """Called when the worker has imported everything; 0.11 maps slots in NumPy."""
    for name in ("vllm.v1.worker.block_table", "vllm_ascend.worker.block_table"):
        if hasattr(sys.modules.get(name), "_compute_slot_mapping_kernel"):
            sys.modules[name]._compute_slot_mapping_kernel = SlotMappingKernel()
