"""Server-side state of OpenAI's Responses API: stored and background responses, conversations, websockets."""
