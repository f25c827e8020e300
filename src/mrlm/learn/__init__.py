"""The weights half: groups of episodes become gradients. It never imports the other half."""
