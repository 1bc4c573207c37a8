-- upkeep_time: the first part of a round of upkeep: jobs that have become due or expired, and which queues need upkeep.
-- Takes {limit}; returns {promoted, expired, queues}.
-- Repeats maintain_jobs of domain/rules/upkeep.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit = args[1]
local promoted, expired = U.promote(limit), U.expire(limit)
local needy = {}
for _, name in ipairs(W.queues()) do
  local row = T.queue(name)
  local settings = row.settings
  local old_dead = settings.keep_dead and call('ZCOUNT', T.look(P .. 'dead:' .. name), '-inf', now - settings.keep_dead)
  local old = settings.keep_completed
    and call('ZCOUNT', T.look(P .. 'fin:' .. name), '-inf', now - settings.keep_completed)
  local rearm = call('SISMEMBER', KEY.rearm, name) == 1
  if U.over_dead_cap(row) > 0 or (old_dead or 0) > 0 or (old or 0) > 0 or rearm then
    needy[#needy + 1] = name
  end
end
return T.done({ promoted, expired, needy })
