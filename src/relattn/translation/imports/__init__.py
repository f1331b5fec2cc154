"""Models of other toolkits, read and made into bundles: OpenNMT-py, eole, and whatever CTranslate2 runs."""
