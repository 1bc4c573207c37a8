-- upkeep_queue: retention and the cap on dead letters, for one queue. Asks {queue, limit}; answers {pruned, evicted,
-- archived}. What the cap evicts is announced as an event and counted, never silent.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local name, limit = asked[1], asked[2]
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
local over = settings.dead_cap and settings.dead_overflow ~= 'reject'
  and min(limit, row.dead - row.archived_dead - settings.dead_cap) or 0
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
return T.done({ pruned, evicted, archived })
