-- upkeep_past: events past their retention, what is remembered of jobs that are gone, workers that have been silent.
-- Asks {limit, how long a silent worker is shown}; answers {events, workers}.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit, memory = asked[1], asked[2]
local keep = call('HGET', KEY.store, 'keep_events')
local trimmed = 0
if keep ~= 'never' then
  local before, counters = now - (keep and tonumber(keep) or SPEC.keep_events), T.counters()
  for _, event in ipairs(T.events_after(counters.trimmed, limit)) do
    if T.instant_and_previous(event) > before then
      break
    end
    trimmed = trimmed + 1
  end
  local left = trimmed
  while left > 0 do
    local number = counters.trimmed + 1
    local here = min(left, BLOCK - (number - 1) % BLOCK)
    call('LTRIM', T.block_of(number), here, -1)
    counters.trimmed = counters.trimmed + here
    left = left - here
  end
  for _, name in ipairs(call('ZRANGEBYSCORE', T.look(KEY.gone), '-inf', before, 'LIMIT', 0, limit)) do
    local seq, id = tonumber(sub(name, 1, 16)), sub(name, 17)
    if #T.children(id) == 0 then -- a dependent still needs to know how this one ended
      T.drop_past(id, seq)
    end
  end
end

local gone = 0
local workers = call('HGETALL', KEY.worker)
for i = 1, #workers, 2 do
  local _, last_beat, ttl = unpacked(sub(workers[i + 1], 1, 27))
  if last_beat + ttl + memory < now then
    call('HDEL', KEY.worker, workers[i])
    gone = gone + 1
  end
end
return T.done({ trimmed, gone })
