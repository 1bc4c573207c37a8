-- archive: hide finished jobs, or show them again. Takes {ids, archived}; returns a word per id.
-- Repeats archive of domain/rules/operate.py.
if repeated then
  return repeated
end
local ids, archived = args[1], args[2]
T.prefetch_ids(ids)
local answers = {}
for i, id in ipairs(ids) do
  local job = T.by_id(id)
  if not job then
    answers[i] = 'not_found'
  elseif CLASS[job.state] == 0 then
    answers[i] = 'not_finished'
  elseif job.archived == archived then
    answers[i] = 'unchanged'
  else
    U.set_archived(job, archived)
    answers[i] = 'done'
  end
end
return T.done(answers)
