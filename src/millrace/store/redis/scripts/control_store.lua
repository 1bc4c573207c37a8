-- control_store: write the settings of the store. Takes {keep_events}, and why it is closed in ARGV 5 and 6 (lib/closing).
-- Repeats control of domain/rules/operate.py.
-- include lib/closing
call('HSET', KEY.store, 'keep_events', args[1])
write_closing(5)
return 1
