-- beat: a worker says that it is there. Asks {id, ttl}, its description in ARGV 5.
call('DEL', P .. 'none')
local kept = call('HGET', KEY.worker, asked[1])
local started = kept and unpacked(sub(kept, 1, 9)) or now
call('HSET', KEY.worker, asked[1], wide(started) .. wide(now) .. wide(asked[2]) .. ARGV[5])
return 1
