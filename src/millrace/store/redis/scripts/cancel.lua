-- cancel: cancel waiting jobs; running ones continue, or are asked to stop. Takes {ids, request}; returns a word per id.
-- Repeats cancel of domain/rules/operate.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local ids, request = args[1], args[2]

local function cancel_one(id)
  local job = T.by_id(id)
  if not job then
    return 'not_found'
  end
  if job.state == 'waiting' then
    X.cancel(job)
    S.finished(job, 'waiting')
    S.carry_out()
    return 'cancelled'
  end
  if job.state ~= 'running' then
    return job.state
  end
  if not request then
    return 'running'
  end
  job.cancel_requested = true
  T.update(job)
  T.wake(CANCELS, job.worker, 1)
  return 'requested'
end

T.prefetch_ids(ids)
local answers = {}
for i, id in ipairs(ids) do
  answers[i] = cancel_one(id)
end
return T.done(answers)
