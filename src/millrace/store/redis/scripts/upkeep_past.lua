-- upkeep_past: delete events past their retention, what is kept of deleted jobs, and records of dead workers.
-- Takes {limit, milliseconds for which a worker without a heartbeat is kept}; returns {events, workers} deleted.
-- Repeats _trim_history and _forget_workers of domain/rules/upkeep.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit, memory = args[1], args[2]
local keep = call('HGET', KEY.store, 'keep_events')
local trimmed, last = 0, nil
if keep ~= 'never' then
  local before, counters = now - (keep and tonumber(keep) or SPEC.keep_events), T.counters()
  for _, event in ipairs(T.events_after(counters.trimmed, limit)) do
    if T.instant_and_previous(event) > before then
      break
    end
    trimmed, last = trimmed + 1, event
  end
  if last then
    call('HSET', KEY.store, 'trimmed_mark', T.mark_of(last))
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
    if #T.children(id) == 0 then -- dependents that wait need to know how this job ended
      T.drop_past(id, seq)
    end
  end
end

local gone = 0
local workers = call('HGETALL', KEY.worker)
for i = 1, #workers, 2 do
  if T.is_silent(workers[i + 1], memory) then
    call('HDEL', KEY.worker, workers[i])
    gone = gone + 1
  end
end
return T.done({ trimmed, gone })
