"""The hospital: Flower ClientApp, sites, local training and data."""
