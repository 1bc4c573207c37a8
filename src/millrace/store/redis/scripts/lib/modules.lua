-- modules: X transitions of one job, S what they mean for others, A admission, L limits, U what time brings about, W walks.
local X, A, L, U, W = {}, {}, {}, {}, {}
local S = { ended = {}, first = 1, emptied = {}, wiped = false }

-- A module's pieces are read in, one after the other, when something is asked of it that it does not know yet.
local function in_pieces(module, ...)
  local pieces, read = { ... }, 0
  setmetatable(module, { __index = function(_, name)
    while read < #pieces do
      read = read + 1
      pieces[read]()
      local found = rawget(module, name)
      if found ~= nil then
        return found
      end
    end
    return nil
  end })
end
