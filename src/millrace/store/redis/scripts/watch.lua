-- watch: be told when a job ends. Asks {id, listener, milliseconds, whether to be told at all}; answers 0 when there is
-- nothing to wait for: the job has ended, or is not there.
local id, listener, length, wanted = unpack(asked, 1, 4)
be_told(id, listener, length, wanted)
local job = wanted and T.by_id(id)
return job and CLASS[job.state] == 0 and 1 or 0
