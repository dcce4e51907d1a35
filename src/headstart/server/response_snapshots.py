"""A response as it stands at some moment: the object that `/v1/responses` answers with, and its items."""

from __future__ import annotations

import time

from headstart.server.blocks import Block, Blocks, TextBlock
from headstart.server.cache_usage import kept_tokens
from headstart.server.front import Front, Ticket
from headstart.server.generation import Generation
from headstart.server.logprobs import for_chat
from headstart.server.responses_protocol import ResponsesRequest
from headstart.server.responses_replies import (
    FunctionCall,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ResponseFailure,
    ResponseReply,
    ResponseUsage,
    Status,
)


class Snapshots:
    """Of one response, whose answer grows in ``blocks``."""

    def __init__(self, front: Front, ticket: Ticket, body: ResponsesRequest, generation: Generation) -> None:
        self.blocks = Blocks(never_none=True)
        self._front = front
        self._ticket = ticket
        self._body = body
        self._generation = generation

    def begun(self) -> ResponseReply:
        """Before anything was said."""
        return self._reply("in_progress", [])

    def finished(self) -> ResponseReply:
        """When all has been said; a limit on the tokens leaves it incomplete."""
        reply = self._reply(self._end, [self.item(block) for block in self.blocks.all], self._usage())
        if self._end == "incomplete":
            reply.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            reply.completed_at = int(time.time())
        return reply

    def failed(self, message: str) -> ResponseReply:
        """With what was said until it failed."""
        items = [self.item(block, "incomplete") for block in self.blocks.all]
        reply = self._reply("failed", items)
        reply.error = ResponseFailure(code="server_error", message=message)
        return reply

    def item_id(self, block: Block) -> str:
        """The name by which events refer to a block."""
        kind = "msg" if isinstance(block, TextBlock) else "fc"
        return f"{kind}_{self._ticket.id.partition('_')[2]}{block.index:02}"

    def item(self, block: Block, status: Status | None = None) -> OutputItem:
        """A block that has ended, or with ``in_progress`` one that has just begun."""
        if status is None:
            status = self._end if block is self.blocks.all[-1] else "completed"
        if isinstance(block, TextBlock):
            parts = [] if status == "in_progress" else [self.part(block)]
            return OutputMessage(
                id=self.item_id(block), type="message", role="assistant", status=status, content=parts
            )
        return FunctionCall(
            id=self.item_id(block),
            type="function_call",
            status=status,
            call_id=block.id,
            name=block.name,
            arguments=block.arguments,
        )

    def part(self, block: TextBlock) -> OutputText:
        """The text of a message: it has one part."""
        told = for_chat(block.tokens).content
        return OutputText(type="output_text", text=block.text, annotations=[], logprobs=told)

    @property
    def _end(self) -> Status:
        return "incomplete" if self.blocks.finish_reason == "length" else "completed"

    def _usage(self) -> ResponseUsage:
        generation = self._generation
        prompt, output = generation.num_prompt_tokens, generation.num_completion_tokens
        cached = generation.num_cached_tokens
        kept = 0 if self._ticket.terms.skip_writing else kept_tokens(self._front.client.info, prompt)
        written = max(0, kept - cached)
        return ResponseUsage(
            input_tokens=prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=written),
            output_tokens=output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=prompt + output,
        )

    def _reply(
        self, status: Status, output: list[OutputItem], usage: ResponseUsage | None = None
    ) -> ResponseReply:
        body = self._body
        wanted = body.text.format if body.text is not None else None
        return ResponseReply(
            id=self._ticket.id,
            object="response",
            created_at=self._ticket.created,
            completed_at=None,
            status=status,
            error=None,
            incomplete_details=None,
            model=self._front.model,
            output=output,
            usage=usage,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=None,
            service_tier="default",
            store=False,
            background=False,
            temperature=1.0 if body.temperature is None else body.temperature,
            text={"format": wanted or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=1.0 if body.top_p is None else body.top_p,
            truncation="disabled",
            user=body.user,
        )
