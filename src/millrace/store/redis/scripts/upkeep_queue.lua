-- upkeep_queue: retention and dead_cap, for one queue. Takes {queue, limit}; returns {pruned, evicted, archived, armed}.
-- Every job that dead_cap evicts is recorded as an event and counted.
-- Repeats _prune, _cap_dead and _arm_dead of domain/rules/upkeep.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local name, limit = args[1], args[2]
local row = T.queue(name)
local settings = row.settings

local function prune(key, keep)
  local count = 0
  for _, seq in ipairs(keep and U.due(key, now - keep, limit) or {}) do
    local job = T.by_seq(seq)
    if job and CLASS[job.state] > 0 then
      S.remove(job, 'pruned', 'retention')
      count = count + 1
    end
  end
  return count
end

local pruned = prune(P .. 'dead:' .. name, settings.keep_dead) + prune(P .. 'fin:' .. name, settings.keep_completed)
local over = min(limit, U.over_dead_cap(row))
local evicted, archived = 0, 0
if over > 0 then
  local evicts = settings.dead_overflow == 'evict'
  for _, seq in ipairs(U.due(P .. 'shown:' .. name, '+inf', over)) do
    local job = T.by_seq(seq)
    if job and evicts then
      S.remove(job, 'evicted', 'dead_cap')
    elseif job then
      U.set_archived(job, true)
    end
  end
  evicted, archived = evicts and over or 0, evicts and 0 or over
end
-- After auto-retry was enabled, schedule a retry for jobs that are already dead.
local function arm_dead()
  local sources = W.sources({ name }, { 2 })
  local armed, after = 0, 0
  while armed < limit do
    local seqs = W.merged(sources, after, 2 ^ 49, false, 500)
    T.prefetch(seqs)
    for _, seq in ipairs(seqs) do
      local job = T.by_seq(seq)
      if job and job.state == 'dead' and armed < limit and not job.next_retry_at and S.next_retry(job) then
        job.next_retry_at = S.next_retry(job)
        T.update(job)
        armed = armed + 1
      end
      after = seq
    end
    if #seqs < 500 then
      break
    end
  end
  if armed < limit then
    call('SREM', KEY.rearm, name)
  end
  return armed
end
local armed = call('SISMEMBER', KEY.rearm, name) == 1 and arm_dead() or 0
return T.done({ pruned, evicted, archived, armed })
