"""The verbs as tools of an MCP server over stdio (docs/mcp.md).

server        speaks the protocol: lists tools, calls them, explains errors
catalogue     the tools
definition    what a tool is
arguments     arguments of the tools, as models
workspace     what a server may read, and where a job is
jobs          tools that read one job, or list them
metrics       tools that read metrics by step: report, compare, timeline
files         tools that take a job's file: estimate, check
changes       tools that change jobs: submit, suspend, resume, eval
verb          a verb as a process of its own, with a deadline
bounds        cuts an answer, and says where: pure
words         error messages of a wrong call: pure
"""
