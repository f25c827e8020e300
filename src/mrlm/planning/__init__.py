"""What a run needs: memory and time of a step on one device or a thousand. It loads no model, plays
no world, and asks torch only where it measures this machine."""
