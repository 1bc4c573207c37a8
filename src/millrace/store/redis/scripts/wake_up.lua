-- wake_up: somebody sleeps no longer. A hint that reached nobody because of that goes on to the next. Asks {queues,
-- sleeper, heard}: whether the sleeper has heard its hint.
local queues, sleeper, heard = unpack(asked, 1, 3)
if call('HDEL', KEY.asleep, sleeper) == 1 then
  for _, name in ipairs(queues) do
    call('ZREM', P .. 'idle:' .. name, sleeper)
  end
elseif not heard then
  for _, name in ipairs(queues) do
    T.stir(name, 1)
  end
end
return T.done(1)
