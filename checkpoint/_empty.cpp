namespace ring {}
