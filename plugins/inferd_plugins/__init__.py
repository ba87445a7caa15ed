"""The plugins that ship with inferd, one folder a kind; `builtins` describes them all."""
