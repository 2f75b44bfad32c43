"""Data sources, partitions and splits."""

from client_app.data.load import load_site, load_sites, load_usable_sites
from client_app.data.site_data import SPLITS, Record, SiteData

__all__ = ["SPLITS", "Record", "SiteData", "load_site", "load_sites", "load_usable_sites"]
