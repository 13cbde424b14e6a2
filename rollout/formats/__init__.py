"""How policies write thoughts and tool calls as text: a reader for each format of verl's; none loses a call."""
