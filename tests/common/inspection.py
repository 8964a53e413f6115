# SPDX-License-Identifier: Apache-2.0
"""Import it, and vLLM inspects the class of a model in this process.

It would start one that imports vLLM anew, 20 s of a core, unless its cache has what the installed release found: the
releases of two pin sets write over each other's.
"""

from vllm.model_executor.models import registry

registry._run_in_subprocess = lambda inspect: inspect()
