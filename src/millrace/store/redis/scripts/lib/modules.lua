-- modules: X transitions of one job, S their consequences, A admission, L limits, U upkeep, W walks over seqs.
local X, A, L, U, W = {}, {}, {}, {}, {}
local S = { ended = {}, first = 1, emptied = {}, wiped = false }

-- Load the parts of a module one after the other, when a function that is not loaded yet is called.
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
