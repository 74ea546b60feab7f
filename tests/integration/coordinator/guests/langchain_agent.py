"""Agents of LangChain and LangGraph: `row.style` names one of `STYLES`, or is `roles`.

`row.more` is what the user says next. `row.stream` streams the turns, and `row.patience` is how many seconds
the client waits for one. With `row.structured` it asks once, for an answer that follows a schema. With
`row.instead` it asks that instead if the prompt took too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import trim_messages
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import APITimeoutError
from pydantic import BaseModel
from service import reporting, serve

SYSTEM = "Use the tool, then answer."


class Answer(BaseModel):
    """The metal that a thing is made of."""

    metal: str


@tool
def look_up(key: str) -> str:
    """Look a thing up."""
    return f"{key} is gold"


def agent(model: ChatOpenAI, **settings: Any) -> Any:
    """LangChain's own agent loop."""
    tools = settings.pop("tools", [look_up])
    return create_agent(model, tools, system_prompt=SYSTEM, checkpointer=InMemorySaver(), **settings)


def graph(model: ChatOpenAI, *, keep: int | None = None) -> Any:
    """A loop written by hand.

    With `keep` the model sees the user's message and only the last `keep` messages.
    """
    bound = model.bind_tools([look_up])

    async def ask(state: MessagesState) -> Any:
        shown: Sequence[Any] = state["messages"]
        if keep is not None and len(shown) > keep:
            last = trim_messages(shown[1:], max_tokens=keep, token_counter=len, start_on="ai")
            shown = [shown[0], *last]
        return {"messages": [await bound.ainvoke(shown)]}

    built = StateGraph(MessagesState)
    built.add_node("ask", ask)
    built.add_node("tools", ToolNode([look_up]))
    built.add_edge(START, "ask")
    built.add_conditional_edges("ask", tools_condition)
    built.add_edge("tools", "ask")
    return built.compile(checkpointer=InMemorySaver())


def team(model: ChatOpenAI) -> Any:
    """An agent whose tool is another agent, with its own system prompt."""
    helper = create_agent(model, [look_up], system_prompt="You look things up for others.")

    @tool
    async def delegate(task: str) -> str:
        """Let a helper do it."""
        done = await helper.ainvoke({"messages": [("user", task)]})
        return str(done["messages"][-1].content)

    return agent(model, tools=[delegate])


STYLES = {
    "agent": agent,
    "graph": graph,
    "trimmed": lambda model: graph(model, keep=2),
    "cleared": lambda model: agent(
        model, middleware=[ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=1)])]
    ),
    "summarized": lambda model: agent(
        model, middleware=[SummarizationMiddleware(model, trigger=("messages", 4), keep=("messages", 2))]
    ),
    "team": team,
    "output by tool": lambda model: agent(model, response_format=ToolStrategy(Answer)),
}


async def in_turn(model: ChatOpenAI, prompt: str) -> str:
    """A second agent continues the first one's messages, with its tools and another system prompt."""
    looks = create_agent(model, [look_up], system_prompt=SYSTEM)
    found = await looks.ainvoke({"messages": [("user", prompt)]})
    checks = create_agent(model, [look_up], system_prompt="Check what was said.")
    found = await checks.ainvoke({"messages": [*found["messages"], ("user", "Is it right?")]})
    return str(found["messages"][-1].content)


async def structured(model: ChatOpenAI, prompt: str, method: str) -> str:
    """One answer that follows a schema, from a LangChain model.

    An empty `method` means LangChain's default.
    """
    shaped = model.with_structured_output(Answer, **({"method": method} if method else {}))
    found = await shaped.ainvoke(prompt)
    return str(found.metal)


async def play(payload: dict[str, Any]) -> str:
    instance = payload["instance"]
    model = ChatOpenAI(
        model="default",
        base_url=f"{payload['metadata']['endpoint']}/v1",
        api_key="unused",
        timeout=instance.get("patience", 30.0),
        max_retries=instance.get("retries", 2),
        streaming=instance.get("stream", False),
    )
    if "structured" in instance:
        return await structured(model, payload["prompt"], instance["structured"])
    if "instead" in instance:
        try:
            await model.ainvoke(payload["prompt"])
        except APITimeoutError:
            print("gave up", flush=True)
        return str((await model.ainvoke(instance["instead"])).content)
    if instance["style"] == "roles":
        return await in_turn(model, payload["prompt"])
    running = STYLES[instance["style"]](model)
    found: dict[str, Any] = {}
    for words in [payload["prompt"], *instance.get("more", [])]:
        asked = {"messages": [("user", words)]}
        found = await running.ainvoke(asked, {"configurable": {"thread_id": "1"}})
    if "structured_response" in found:
        return str(found["structured_response"].metal)
    return str(found["messages"][-1].content)


if __name__ == "__main__":
    serve(reporting(play))
