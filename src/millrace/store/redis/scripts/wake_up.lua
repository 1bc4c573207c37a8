-- wake_up: remove a sleeper that will not claim. If a hint was already sent to it, other sleepers get the hint. Which
-- place the hint was for is no longer known, so one sleeper of each kind that could use it is woken.
-- Takes {queues, sleeper}.
local queues, sleeper = unpack(args, 1, 2)
if not remove_sleeper(sleeper) then
  for _, queue in ipairs(queues) do
    for _, kind in ipairs(call('HKEYS', P .. 'idle:' .. queue)) do
      wake_sleepers(P .. 'idle:' .. queue .. ':' .. kind, 1)
    end
    wake(queue, nil, 1)
  end
  for _, task in ipairs(call('HKEYS', KEY.task)) do
    wake(nil, task, 1)
  end
end
return 1
