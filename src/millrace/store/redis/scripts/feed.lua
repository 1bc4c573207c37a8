-- feed: returns {trimmed, newest, mark of the last trimmed event, events after a number, events with given numbers}.
-- Takes {after or nil for the oldest kept, limit, numbers}; the number -1 is the newest; a missing event is false.
local counters = T.counters()
local named = {}
for i, number in ipairs(args[3]) do
  if number < 0 then
    number = counters.events
  end
  local there = number > counters.trimmed and number <= counters.events
  named[i] = there and T.in_block(number, 1)[1] or false
end
return { counters.trimmed, counters.events, call('HGET', KEY.store, 'trimmed_mark') or '',
  T.events_after(max(args[1] or 0, counters.trimmed), args[2]), named }
