# SPDX-License-Identifier: Apache-2.0
"""What the checks on platform npu share."""

import types


def raises(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{function.__name__} raised nothing")


def set_ascend_config():
    """What 0.23's sampler and runner read of the configuration, upstream's defaults."""
    import vllm_ascend.ascend_config as module

    verification = types.SimpleNamespace(
        enable_block_verify=False, enable_entropy_verify=False, posterior_threshold=0.95, posterior_alpha=0.4
    )
    settings = {"enable_reduce_sample": False, "rejection_sampler_config": verification, "enable_sp_by_pass": False}
    module._ASCEND_CONFIG = types.SimpleNamespace(ascend_compilation_config=None, eplb_config=None, **settings)
