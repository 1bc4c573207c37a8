-- wrk's part: each request brings a number of its own, and each id that is answered is written down.
-- Given {folder, token, first number}.
local threads = 0
function setup(thread)
  thread:set('number', threads)
  threads = threads + 1
end

function init(args)
  next_number = tonumber(args[3]) + number * 1000000000
  file = io.open(args[1] .. '/answered-' .. args[3] .. '-' .. number, 'w')
  wrk.method = 'POST'
  wrk.headers['Content-Type'] = 'application/json'
  wrk.headers['Authorization'] = 'Bearer ' .. args[2]
end

function request()
  next_number = next_number + 1
  local payload = string.format('{"to":"ada@example.com","n":%d}', next_number)
  return wrk.format(nil, nil, nil, '{"task":"mail","payload":' .. payload .. '}')
end

function response(status, headers, body)
  if status == 201 then
    file:write(string.match(body, '"id":"([^"]+)"'), '\n')
  else
    file:write('refused ', status, ' ', body, '\n')
  end
end
