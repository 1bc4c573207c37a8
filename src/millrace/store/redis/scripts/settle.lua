-- settle: write how runs ended, each if its lease still holds the job; a lost lease changes nothing.
-- Takes {items}: {seq, lease id, verb, delay, index of the result's body, error, reason, failed, stalled, duration,
-- specs, keep_result or nil, index of the log's body}; or, if all only complete different jobs, {nil, seqs, lease ids,
-- durations, indexes of the results or false}.
-- Returns one letter per item: O written, L lost, C cancelled on request; or a refusal, and then nothing is written.
-- Repeats Ledger.settle of domain/ledger.py.
if repeated then
  return repeated
end

call('DEL', P .. 'none') -- allows writes although the memory is full: see docs/decisions/0014
local items, seqs = args[1] or {}, {}
for i, seq in ipairs(args[2] or {}) do
  items[i] = { seq, args[3][i], 'complete', 0, args[5][i] or nil, nil, nil, 0, 0, args[4][i] }
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
  local job = T.held(item[1], item[2])
  if not job then
    return 'L'
  end
  local was_asked = job.cancel_requested
  if item[13] then
    X.put_log(job, ARGV[item[13]])
  end
  X.settle(job, { verb = item[3], delay = item[4], result = item[5] and ARGV[item[5]] or nil, error = item[6],
    reason = item[7], failed = item[8], stalled = item[9], duration = item[10],
    keep_result = item[12], jobs = item[11] })
  if job.state == 'waiting' then
    S.returned(job)
  else
    S.finished(job, 'running')
  end
  local ended_as_asked = was_asked and job.state == 'cancelled'
  if item[11] then -- after the job's own end, which frees its id, key and line for them
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
