"""Training: groups of episodes become gradients. Never imports the rollout side, `mrlm.play`."""
