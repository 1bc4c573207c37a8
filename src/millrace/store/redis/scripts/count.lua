-- count: the counters of all queues. Returns the current time, followed by one list per queue: {name, waiting, running,
-- completed, dead, cancelled, blocked, scheduled, retrying, archived, available_at of the oldest due job or -1, paused,
-- processed, died}.
-- Repeats counts of domain/rules/operate.py.
local answers = { now }
for _, name in ipairs(W.queues()) do
  local row, beyond = T.queue(name), '(' .. format('%.0f', now)
  local later = call('ZCOUNT', P .. 'aside:' .. name, beyond, '+inf')
  local oldest = -1
  for _, combo in ipairs(T.combos_of(name)) do
    later = later + call('ZCOUNT', combo.key, beyond, '+inf')
    local head = call('ZRANGE', combo.key, 0, 0, 'WITHSCORES')
    local at = head[2] and tonumber(head[2])
    if at and at <= now and (oldest < 0 or at < oldest) then
      oldest = at
    end
  end
  local retrying = call('ZCOUNT', P .. 'again:' .. name, beyond, '+inf')
  answers[#answers + 1] = { name, row.waiting, row.running, row.completed, row.dead, row.cancelled, row.blocked,
    later - retrying, retrying, row.archived, oldest, row.settings.paused and 1 or 0, row.processed, row.died }
end
return answers
