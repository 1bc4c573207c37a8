-- find: returns the next jobs in order of seq, from the smallest index. The caller applies the whole query to the rows.
-- Takes {queues or nil, classes, after, before, back, limit, budget, sieve}. The sieve skips jobs that cannot match:
-- {task, group, key, archived, enqueued from and to, finished from and to, state or its word}.
-- Returns {now, last seq read or 0, number read, whether at the end, rows}.
-- Repeats word of domain/job.py.
local queues, classes, after, before, back, limit, budget, sieve = unpack(args, 1, 8)
local task, group, key, archived, from, to, ended_from, ended_to, word = unpack(sieve, 1, 9)
local PART = 500 -- limit of jobs read at a time; the first read is as large as the page

local IS = {
  blocked = function(job)
    return job.blocked > 0
  end,
  ready = function(job)
    return job.blocked == 0 and job.available_at <= now
  end,
  retrying = function(job)
    return job.blocked == 0 and job.available_at > now and job.failures > 0
  end,
  scheduled = function(job)
    return job.blocked == 0 and job.available_at > now and job.failures == 0
  end,
}

local function is_so(job)
  return not word or job.state == word or (job.state == 'waiting' and IS[word] and IS[word](job))
end

local function may_match(job)
  return is_so(job)
    and (not queues or job.queue == queues[1]) and (not task or job.task == task)
    and (not group or job.group == group) and (not key or job.key == key)
    and (archived == nil or job.archived == archived)
    and (not from or job.enqueued_at >= from) and (not to or job.enqueued_at < to)
    and (not ended_from or (job.finished_at and job.finished_at >= ended_from))
    and (not ended_to or (job.finished_at and job.finished_at < ended_to))
end

local function opened()
  if word == 'running' and not (key or group) then
    return W.running(after, before, back)
  end
  local sources
  if key or group then
    sources = { { key = key and P .. 'keyed:' .. key or P .. 'grouped:' .. group, base = 0 } }
  else
    sources = W.sources(queues or W.queues(), classes)
  end
  W.open(sources, after, before, back, limit)
  return sources
end

local sources = opened()
local jobs, looked_at, last, at_end = {}, 0, 0, 0
while at_end == 0 and #jobs < limit and looked_at < budget do
  local part = math.min(PART, budget - looked_at, math.max(limit - #jobs, looked_at))
  local seqs = W.take(sources, back, part)
  T.prefetch(seqs)
  local before_part = looked_at
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
  at_end = #seqs < part and looked_at - before_part == #seqs and 1 or 0
end
return { now, last, looked_at, at_end, T.rows_of(jobs) }
