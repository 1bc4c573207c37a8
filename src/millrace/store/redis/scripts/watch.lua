-- watch: register or remove a watch, which notifies a listener when a job ends. Takes {id, listener, milliseconds to
-- keep the watch, true to register or false to remove}. Returns 1 if a watch was registered on a job that has not ended;
-- otherwise 0.
local id, listener, length, wanted = unpack(args, 1, 4)
register_watch(id, listener, length, wanted)
local job = wanted and T.by_id(id)
return job and CLASS[job.state] == 0 and 1 or 0
