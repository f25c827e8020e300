"""Card games with hidden hands, solved exactly."""
