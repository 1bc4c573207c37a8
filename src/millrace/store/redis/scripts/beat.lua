-- beat: the heartbeat of a worker. Takes {id, ttl}, and its description in ARGV 5.
-- Repeats beat of domain/rules/operate.py.
call('DEL', P .. 'none')
local kept = call('HGET', KEY.worker, args[1])
local started = kept and unpacked(sub(kept, 1, 9)) or now
call('HSET', KEY.worker, args[1], wide(started) .. wide(now) .. wide(args[2]) .. ARGV[5])
return 1
