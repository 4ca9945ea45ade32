"""Code shared by the protocol packages, which never import each other."""
