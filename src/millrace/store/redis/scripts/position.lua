-- position: how many jobs run before this one, or -1 when it does not wait. Asks {id}.
local job = T.by_id(asked[1])
if not job or job.state ~= 'waiting' then
  return -1
end
return A.ahead(job, A.MOST_AHEAD)
