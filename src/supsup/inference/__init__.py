"""Which task does an input belong to?"""
