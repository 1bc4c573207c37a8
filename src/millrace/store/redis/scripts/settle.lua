-- settle: end runs, each under the lease that still holds the job; a lost lease changes nothing.
-- Asks {items}: {seq, lease id, verb, delay, result's number, error, reason, failed, stalled, duration, specs}; or, where
-- all are mere completions and no two of one job, {nil, seqs, lease ids, durations, results' numbers or false}.
-- Answers one letter per item: O written, L lost, C cancelled as somebody had asked; or a refusal and nothing.
if repeated then
  return repeated
end

call('DEL', P .. 'none') -- also with a full memory: see docs/decisions/0014
local items, seqs = asked[1] or {}, {}
for i, seq in ipairs(asked[2] or {}) do
  items[i] = { seq, asked[3][i], 'complete', 0, asked[5][i] or nil, nil, nil, 0, 0, asked[4][i] }
end
for i, item in ipairs(items) do
  seqs[i] = item[1]
end
T.prefetch(seqs)

local function check()
  for _, item in ipairs(items) do
    item[11] = item[11] and A.specs(item[11])
    if item[11] then
      A.refuse_cycles(item[11])
    end
  end
end

local _, refused = A.attempt(check)
if refused then
  return { 'refused', refused }
end

local function settle_one(item)
  local job = T.by_seq(item[1])
  if not job or job.state ~= 'running' or job.lease_id ~= item[2] then
    return 'L'
  end
  local was_asked = job.cancel_requested
  X.settle(job, { verb = item[3], delay = item[4], result = item[5] and ARGV[item[5]] or nil, error = item[6],
    reason = item[7], failed = item[8], stalled = item[9], duration = item[10] })
  if job.state == 'waiting' then
    S.returned(job)
  else
    S.finished(job, 'running')
  end
  local ended_as_asked = was_asked and job.state == 'cancelled'
  if item[11] then -- after its own end, which frees its id, its key and its place in line for them
    A.enqueue(item[11], true)
  end
  S.carry_out()
  return ended_as_asked and 'C' or 'O'
end

local receipts = {}
for i, item in ipairs(items) do
  receipts[i] = settle_one(item)
end
return T.done(table.concat(receipts))
