"""Structured output: grammars are tried in a process that may die, compiled beside the step loop, applied as masks."""
