-- watch: be told when a job ends. Asks {id, listener, milliseconds, whether to be told at all}.
local id, listener, length, wanted = unpack(asked, 1, 4)
local listeners = {}
for name in (call('HGET', KEY.watch, id) or ''):gmatch('%S+') do
  if name ~= listener then
    listeners[#listeners + 1] = name
  end
end
if wanted then
  listeners[#listeners + 1] = listener
end
if #listeners > 0 then
  call('HSET', KEY.watch, id, table.concat(listeners, ' '))
  call('ZADD', KEY.watching, server_time + length, id)
else
  call('HDEL', KEY.watch, id)
  call('ZREM', KEY.watching, id)
end
return 1
