# SPDX-License-Identifier: Apache-2.0
"""A tool for the tiny model's sums, and the parser that finds its calls in verl's agent loop; loaded as
rollout.multi_turn.function_tool_path.

The tiny model does not know tools. The numbers that its answer adds count as a call, so it has two turns in each
conversation.
"""

import json
import re

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool

NUMBERS = re.compile(r"(?:starting with|Now add) (\d+)")


@function_tool
def add(numbers: list[int]) -> str:
    """Add numbers.

    Args:
        numbers: the numbers to add.
    """
    return f"The sum is {sum(numbers)}."


@ToolParser.register("sums")
class SumsParser(ToolParser):
    """Finds a call of `add` in an answer; selected by rollout.multi_turn.format: sums."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        numbers = [int(number) for number in NUMBERS.findall(text)]
        call = FunctionCall(name="add", arguments=json.dumps({"numbers": numbers}))
        return text, [call] if numbers else []
