"""Drives a gateway by the unmodified `openai` library; prints a report as JSON.

openai_client.py URL MODEL
"""

import asyncio
import json
import sys

import openai

HELLO = [{"role": "user", "content": "Hello."}]
METRES = {"type": "integer", "minimum": 0, "maximum": 9}
FORM = {
    "type": "object",
    "properties": {"metres": METRES, "side": {"enum": ["left", "right"]}},
    "required": ["metres", "side"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "turn", "schema": FORM, "strict": True}}
TOOL = {"type": "function", "function": {"name": "turn", "parameters": FORM}}
USUAL = {"messages": HELLO, "max_tokens": 20, "temperature": 0}


def report(url: str, model: str) -> dict:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    found = {"version": openai.__version__, "models": [each.id for each in client.models.list()]}
    found["retrieved"] = client.models.retrieve(model).id
    whole = client.chat.completions.create(model=model, **USUAL, logprobs=True, top_logprobs=2)
    found["whole"] = whole.choices[0].message.content
    found["finish"] = whole.choices[0].finish_reason
    found["usage"] = whole.usage.total_tokens
    found["logprobs"] = len(whole.choices[0].logprobs.content)
    stream = client.chat.completions.create(
        model=model, **USUAL, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        found["stream usage"] = chunk.usage and chunk.usage.total_tokens
    found["streamed"] = list(texts.values())
    text = client.completions.create(model=model, prompt="Once", max_tokens=10, temperature=0)
    found["text"] = text.choices[0].text
    pieces = client.completions.create(
        model=model, prompt="Once", max_tokens=10, temperature=0, stream=True
    )
    found["text streamed"] = "".join(piece.choices[0].text for piece in pieces)
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as left:
        next(iter(left))  # and go away
    found["parsed"] = json.loads(said(client, model, response_format=FORMAT).content)
    [call] = said(client, model, tools=[TOOL], tool_choice="required").tool_calls
    found["call"] = [call.type, call.function.name, json.loads(call.function.arguments)]
    asked = USUAL | {"max_tokens": 200, "tools": [TOOL], "tool_choice": "required"}
    stream = client.chat.completions.create(model=model, **asked, stream=True)
    deltas = [chunk.choices[0] for chunk in stream]
    [piece] = [one for each in deltas for one in each.delta.tool_calls or []]
    found["call streamed"] = [piece.index, piece.function.name, deltas[-1].finish_reason]
    found["refused"] = [
        refused(client, openai.NotFoundError, model="absent"),
        refused(client, openai.BadRequestError, model=model, max_tokens=100_000),
        refused(client, openai.BadRequestError, model=model, frequency_penalty=1),
    ]
    found["async"] = asyncio.run(streamed(url, model))
    return found


def said(client: openai.OpenAI, model: str, **fields: object) -> object:
    asked = USUAL | {"max_tokens": 200} | fields
    return client.chat.completions.create(model=model, **asked).choices[0].message


def refused(client: openai.OpenAI, kind: type, **fields: object) -> str:
    try:
        client.chat.completions.create(messages=HELLO, **fields)
    except kind as error:
        return str(error.code or error.param)
    return "answered"


async def streamed(url: str, model: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model=model, **USUAL, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


print(json.dumps(report(*sys.argv[1:])))
