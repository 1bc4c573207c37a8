-- reclaim: give jobs with expired leases a new lease, oldest first. The caller decides about each job and settles it.
-- Takes {worker, limit, lease, queues or nil, tasks or nil, lease ids to ignore, claim id}; returns rows.
-- Repeats Ledger.reclaim of domain/ledger.py.
local PROMOTIONS, PAGE, MOST_LOOKED_AT = 100, 500, 10000
local worker, limit, lease, queues, tasks, ignored, claim_id = unpack(args, 1, 7)

if repeated then
  return T.rows_of_claim(claim_id, repeated[1], repeated[2])
end

call('DEL', P .. 'none')
U.promote(PROMOTIONS)
local in_queues, in_tasks, spared = queues and set_of(queues), tasks and set_of(tasks), set_of(ignored)
local found, offset = {}, 0
T.look(KEY.lease)
while #found < limit and offset < MOST_LOOKED_AT do
  local page = seqs_of(call('ZRANGEBYSCORE', KEY.lease, '-inf', '(' .. format('%.0f', now), 'LIMIT', offset, PAGE))
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
  X.reclaim(job, worker, T.lease_id(claim_id, job.seq), lease)
  T.update(job)
  seqs[i], lost[i] = job.seq, job.lost_worker and 1 or 0
end
T.done(nil, { seqs, lost })
return T.rows_of(found)
