-- export_keys: the unique keys that are held until an instant or later. Takes {since, skip, limit}; returns {name, owner,
-- seq, scope, ends, 1 if its job is gone or else 0} for each.
-- Repeats export of domain/rules/exporting.py.
local found, names = {}, call('ZRANGEBYSCORE', KEY.window, args[1], '+inf', 'LIMIT', args[2], args[3])
for _, name in ipairs(names) do
  local owner, seq, scope, ends = unpacked(call('HGET', KEY.key, name))
  local is_gone = call('HEXISTS', P .. 'job', format('%.0f', seq)) == 0
  found[#found + 1] = { name, owner, seq, scope, ends, is_gone and 1 or 0 }
end
return found
