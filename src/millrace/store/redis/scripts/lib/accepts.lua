-- accepts: whether enqueues into `queue` may use the fast path. Python decides it when it writes the settings (control.py).
-- Repeats accepts_all of domain/rules/fast_path.py.
-- The field '' is set while the store is closed; enqueue.lua then refuses.
local kept = call('HMGET', P .. 'settings', queue, '')
local accepts = not kept[2] and (not kept[1] or unpacked(kept[1]).fast_enqueue)
