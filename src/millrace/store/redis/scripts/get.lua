-- get: jobs by id. Asks {ids}; answers {now, rows}; an id that is not there has no row.
T.prefetch_ids(asked[1])
local jobs = {}
for _, id in ipairs(asked[1]) do
  jobs[#jobs + 1] = T.by_id(id)
end
return { now, T.rows_of(jobs) }
