"""The world half: agents, worlds and workflows become groups of episodes. It never imports torch or
the other half."""
