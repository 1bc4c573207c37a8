-- export_past: the next deleted generations. Takes {how many come before, limit}; returns {id, seq, generation, state,
-- token, gone_at, events} for each.
-- Repeats export of domain/rules/exporting.py.
local found, names = {}, call('ZRANGE', KEY.gone, args[1], args[1] + args[2] - 1, 'WITHSCORES')
for i = 1, #names, 2 do
  local seq, id = tonumber(sub(names[i], 1, 16)), sub(names[i], 17)
  for _, past in ipairs(T.past(id)) do
    if past.seq == seq then
      found[#found + 1] = { id, seq, past.generation, past.state, past.token, tonumber(names[i + 1]),
        T.events_back(past.last_event) }
    end
  end
end
return found
