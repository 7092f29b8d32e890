import tiny

tiny.register()
