# SPDX-License-Identifier: Apache-2.0
"""Sessions with streamed input, passed to an engine as in AsyncLLM's _add_streaming_input_request."""

import copy


def add_turn(engine, name, prompt, params, **settings):
    """Add a turn to the session `name` of an LLMEngine; an empty prompt ends the session.

    settings: additional arguments of InputProcessor.process_inputs.
    """
    request = engine.input_processor.process_inputs(
        name,
        {"prompt_token_ids": list(prompt) or [0]},
        params,
        supported_tasks=engine.get_supported_tasks(),
        resumable=bool(prompt),
        **settings,
    )
    request.external_req_id = name
    engine.output_processor.add_request(copy.copy(request), None, None, 0)
    request.prompt_token_ids = list(request.prompt_token_ids)  # both sides extend their list
    engine.engine_core.add_request(request)
