-- drain: cancel up to `limit` waiting jobs of a queue or lane; hooks stay. Takes {queue, limit, lane or nil}.
-- Repeats drain of domain/rules/operate.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local queue, limit, lane = unpack(args, 1, 3)

-- From the last to the first, so that each line elects its next member only once.
local function drain_all(seqs)
  T.prefetch(seqs)
  local count = 0
  for i = #seqs, 1, -1 do
    local job = T.by_seq(seqs[i])
    if job and job.state == 'waiting' then
      X.cancel(job, 'drained')
      S.finished(job, 'waiting')
      count = count + 1
    end
  end
  return count
end

local function wanted(most)
  local found, after = {}, 0
  while #found < most do
    local seqs = W.merged(W.sources({ queue }, { 0 }), after, 2 ^ 49, false, 500)
    if #seqs == 0 then
      break
    end
    after = seqs[#seqs]
    T.prefetch(seqs)
    for _, seq in ipairs(seqs) do
      local job = T.by_seq(seq)
      if #found < most and job and job.state == 'waiting' and not job.hook and (not lane or job.lane == lane) then
        found[#found + 1] = seq
      end
    end
  end
  return found
end

local count = 0
if lane then
  local lanes = T.queue(queue).settings.lanes or 0
  if lane < 0 or lane >= lanes then
    return { 'refused', { 'no_lane', queue, lane, lanes } }
  end
  count = drain_all(T.members(queue, 'l:' .. lane, limit))
end
local line = lane and T.line(queue, 'l:' .. lane)
if not lane or (line and line.waiting > 0) then
  count = count + drain_all(wanted(limit - count))
end
S.carry_out()
return T.done(count)
