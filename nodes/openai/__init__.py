"""OpenAI's protocol at the HTTP door: chats and texts of the mesh's language models."""
