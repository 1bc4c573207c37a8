-- delete: delete finished jobs now, as retention does later. Takes {ids}; returns a word per id.
-- Repeats delete of domain/rules/operate.py.
if repeated then
  return repeated
end
local ids = args[1]
T.prefetch_ids(ids)
local answers = {}
for i, id in ipairs(ids) do
  local job = T.by_id(id)
  if not job then
    answers[i] = 'not_found'
  elseif CLASS[job.state] == 0 then
    answers[i] = 'not_finished'
  else
    S.remove(job, 'pruned', 'deleted')
    answers[i] = 'deleted'
  end
end
return T.done(answers)
