"""The data model: conversations, replies, turns and errors, independent of any protocol."""
