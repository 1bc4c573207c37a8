-- reclaim: take over expired leases, oldest first; the taker decides and settles like any holder.
-- Asks {worker, limit, lease, queues or nil, tasks or nil, lease ids to ignore, claim id}; answers rows.
local PROMOTIONS, PAGE, MOST_LOOKED_AT = 100, 500, 10000
local worker, limit, lease, queues, tasks, ignored, claim_id = unpack(asked, 1, 7)

local function lease_name(seq)
  return claim_id .. '.' .. format('%.0f', seq)
end

if repeated then
  local jobs = {}
  for i, seq in ipairs(repeated[1]) do
    local job = T.by_seq(seq)
    if job and job.state == 'running' and job.lease_id == lease_name(seq) then
      job.lost_worker = repeated[2][i] == 1
      jobs[#jobs + 1] = job
    end
  end
  return T.rows_of(jobs)
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do
    set[name] = true
  end
  return set
end

call('DEL', P .. 'none')
U.promote(PROMOTIONS)
local in_queues, in_tasks, spared = queues and set_of(queues), tasks and set_of(tasks), set_of(ignored)
local found, offset = {}, 0
T.look(KEY.lease)
while #found < limit and offset < MOST_LOOKED_AT do
  local page = call('ZRANGEBYSCORE', KEY.lease, '-inf', '(' .. format('%.0f', now), 'LIMIT', offset, PAGE)
  for i = 1, #page do
    page[i] = tonumber(page[i])
  end
  T.prefetch(page)
  for _, seq in ipairs(page) do
    local job = T.by_seq(seq)
    if #found < limit and job and (not in_queues or in_queues[job.queue]) and (not in_tasks or in_tasks[job.task])
      and not spared[job.lease_id] then
      found[#found + 1] = job
    end
  end
  offset = offset + PAGE
  if #page < PAGE then
    break
  end
end

local seqs, lost = {}, {}
for i, job in ipairs(found) do
  job.lost_worker = T.worker_gone(job.worker)
  X.reclaim(job, worker, lease_name(job.seq), lease)
  T.update(job)
  seqs[i], lost[i] = job.seq, job.lost_worker and 1 or 0
end
T.done(nil, { seqs, lost })
return T.rows_of(found)
