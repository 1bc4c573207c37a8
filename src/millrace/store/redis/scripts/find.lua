-- find: the next jobs by seq from the narrowest index; what they are asked to be besides is judged by who asks.
-- Asks {queues or nil, classes, after, before, back, limit, budget, sieve}: the sieve leaves out what cannot match,
-- {task, group, key, archived, enqueued from and to, finished from and to}. Answers {now, last seq looked at or 0, looked at, at the end, rows}.
local queues, classes, after, before, back, limit, budget, sieve = unpack(asked, 1, 8)
local task, group, key, archived, from, to, ended_from, ended_to = unpack(sieve, 1, 8)

local function may_match(job)
  return (not task or job.task == task) and (not group or job.group == group) and (not key or job.key == key)
    and (archived == nil or job.archived == archived)
    and (not from or job.enqueued_at >= from) and (not to or job.enqueued_at < to)
    and (not ended_from or (job.finished_at and job.finished_at >= ended_from))
    and (not ended_to or (job.finished_at and job.finished_at < ended_to))
end

local sources
if key or group then
  sources = { { key = key and P .. 'keyed:' .. key or P .. 'grouped:' .. group, base = 0 } }
else
  sources = W.sources(queues or W.queues(), classes)
end
local seqs = W.merged(sources, after, before, back, budget)
T.prefetch(seqs)
local jobs, looked_at, last = {}, 0, 0
for _, seq in ipairs(seqs) do
  if #jobs >= limit then
    break
  end
  looked_at, last = looked_at + 1, seq
  local job = T.by_seq(seq)
  if job and may_match(job) then
    jobs[#jobs + 1] = job
  end
end
return { now, last, looked_at, #seqs < budget and looked_at == #seqs and 1 or 0, T.rows_of(jobs) }
