-- archive: hide finished jobs, or show them again. Asks {ids, archived}; answers words.
if repeated then
  return repeated
end
local ids, archived = asked[1], asked[2]
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
