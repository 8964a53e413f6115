# SPDX-License-Identifier: Apache-2.0
"""Sessions with streamed input, as AsyncLLM's _add_streaming_input_request gives them to an engine."""

import copy


def add_turn(engine, name, prompt, params, **settings):
    """Adds a turn to the session `name` of an LLMEngine; an empty prompt ends the session.

    settings: more of InputProcessor.process_inputs.
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
    request.prompt_token_ids = list(request.prompt_token_ids)  # both sides lengthen theirs
    engine.engine_core.add_request(request)
