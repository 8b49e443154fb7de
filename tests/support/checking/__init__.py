"""What a run was seen to do, and the rules that it is judged by."""
