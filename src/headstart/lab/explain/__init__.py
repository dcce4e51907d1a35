"""Why the hit rate is what it is: findings in plain words, each with its price and its fix."""
