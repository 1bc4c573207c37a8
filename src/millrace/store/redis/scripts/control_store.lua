-- control_store: write the settings of the store if they have not changed since they were read. Takes {keep_events}; why
-- it is closed in ARGV 5 and 6 (lib/closing); keep_events and why it is closed as they were read in ARGV 7 and 8, '' for
-- none. Returns 1, or 0 if they have changed.
-- Repeats control of domain/rules/operate.py.
-- include lib/closing
local kept = call('HMGET', KEY.store, 'keep_events', 'closed')
if (kept[1] or '') ~= ARGV[7] or (kept[2] or '') ~= ARGV[8] then
  return 0
end
call('HSET', KEY.store, 'keep_events', args[1])
write_closing(5)
return 1
