"""`verify`: a report that compares the exact bias with Monte Carlo, theory and bounds."""
