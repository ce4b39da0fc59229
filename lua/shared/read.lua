-- DEFINES fieldsOf, append, reader, payloadsOf
-- USES unpack
-- For the scripts that read what hashes have of many tasks.

local function fieldsOf(...) return redis.call('HMGET', KEYS[4], ...) end

-- Appends what a script says of an entry to its reply.
local function append(reply, ...)
  for _, part in ipairs({ ... }) do reply[#reply + 1] = part end
end

-- Returns a function that reads what a hash has of the i-th of ids; it is called with i in
-- ascending order. It reads ahead: n at first, then more at a time, of large ones no more
-- than make a megabyte. read reads the hash.
local function reader(read, ids, n)
  local values, before, size = {}, 0, 0
  return function(i)
    if i - before > #values then
      before, values = i - 1, read(unpack(ids, i, math.min(i + n - 1, #ids)))
      local largest = 1
      for _, value in ipairs(values) do
        local length = value and #value or 0
        largest, size = math.max(largest, length), size + length
      end
      n = math.max(1, math.min(4 * n, math.floor((1048576 - size) / largest)))
    end
    return values[i - before]
  end
end

-- Reads the payloads of tasks that are to be handed out: '' for an empty one, or an empty list
-- if there are none at all. The first that would be read after a megabyte, and those behind
-- it, are taken off ids; says whether there were any.
local function payloadsOf(ids)
  local payloads, size = {}, 0
  if redis.call('HLEN', KEYS[2]) == 0 then return payloads, false end
  local payload = reader(function(...) return redis.call('HMGET', KEYS[2], ...) end, ids, 1)
  for i = 1, #ids do
    if size >= 1048576 then
      for j = #ids, i, -1 do ids[j] = nil end
      return payloads, true
    end
    payloads[i] = payload(i) or ''
    size = size + #payloads[i]
  end
  return payloads, false
end
