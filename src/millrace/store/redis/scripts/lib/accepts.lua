-- accepts: whether enqueues into `queue` may use the fast path. Python decides it when it writes the settings (control.py).
-- Repeats accepts_all of domain/rules/fast_path.py.
local settings = call('HGET', P .. 'settings', queue)
local accepts = not settings or unpacked(settings).fast_enqueue
