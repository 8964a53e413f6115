# SPDX-License-Identifier: Apache-2.0
"""If imported, vLLM inspects a model's class in this process.

Otherwise it starts a process that imports vLLM again (20 s of a core), unless its cache has the result of the installed
release; the releases of two pin sets overwrite each other's results.
"""

from vllm.model_executor.models import registry

registry._run_in_subprocess = lambda inspect: inspect()
