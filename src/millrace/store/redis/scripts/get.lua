-- get: jobs by id. Takes {ids}; returns {now, rows}; an unknown id has no row.
T.prefetch_ids(args[1])
local jobs = {}
for _, id in ipairs(args[1]) do
  jobs[#jobs + 1] = T.by_id(id)
end
return { now, T.rows_of(jobs) }
