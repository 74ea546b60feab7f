"""Serves the commands of `headway` as tools of an MCP server over stdio (docs/mcp.md).

server        speaks the protocol: lists tools, calls them, explains errors
catalogue     the tools
definition    the classes of a tool and of its arguments
arguments     arguments of the tools, as pydantic models
workspace     decides what a server may read, and finds jobs
jobs          tools that read one job, or list them
metrics       tools that read metrics by step: report, compare, timeline
files         tools that take a job's file: estimate, check
changes       tools that change jobs: submit, suspend, resume, eval
verb          runs a command as a process of its own, with a deadline
bounds        cuts an answer, and says where: pure
words         error messages of a wrong call: pure
"""
