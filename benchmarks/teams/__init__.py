"""Does training a team help, at equal numbers of sampled tokens?"""
