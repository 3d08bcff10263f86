"""Role-guided masks (Wang et al. 2020): masks of heads by linguistic roles."""
