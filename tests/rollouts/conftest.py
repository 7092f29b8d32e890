import worlds

worlds.register()
