-- upkeep_time: the first piece of a round of upkeep: what has become due or has expired, and which queues need a look.
-- Asks {limit}; answers {promoted, expired, queues}.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit = asked[1]
local promoted, expired = U.promote(limit), U.expire(limit)
local needy = {}
for _, name in ipairs(W.queues()) do
  local row = T.queue(name)
  local settings = row.settings
  local over = settings.dead_cap and settings.dead_overflow ~= 'reject'
    and row.dead - row.archived_dead > settings.dead_cap
  local old_dead = settings.keep_dead and call('ZCOUNT', T.look(P .. 'dead:' .. name), '-inf', now - settings.keep_dead)
  local old = settings.keep_completed
    and call('ZCOUNT', T.look(P .. 'fin:' .. name), '-inf', now - settings.keep_completed)
  if over or (old_dead or 0) > 0 or (old or 0) > 0 then
    needy[#needy + 1] = name
  end
end
return T.done({ promoted, expired, needy })
