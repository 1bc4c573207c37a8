-- position: how many jobs run before this one, or -1 if it is not waiting. Takes {id}.
-- Repeats position of domain/rules/operate.py.
local job = T.by_id(args[1])
if not job or job.state ~= 'waiting' then
  return -1
end
return A.ahead(job, A.MOST_AHEAD)
